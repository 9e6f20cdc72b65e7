/*
 * The part of nvml.c that NVIDIA's own programs ask for and the agent does not: older names of functions, and whose a
 * handle is. Such programs are run in tests/programs.
 */

int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlDeviceGetCount(unsigned *out)
{
    return nvmlDeviceGetCount_v2(out);
}

int nvmlDeviceGetHandleByIndex(unsigned index, struct device **out)
{
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

int nvmlDeviceGetPciInfo(struct device *device, struct pci *out)
{
    return nvmlDeviceGetPciInfo_v3(device, out);
}

int nvmlDeviceGetPciInfo_v2(struct device *device, struct pci *out)
{
    return nvmlDeviceGetPciInfo_v3(device, out);
}

int nvmlDeviceGetIndex(struct device *device, unsigned *out)
{
    if (!users)
        return UNINITIALIZED;
    if (lost(device))
        return GPU_IS_LOST;
    *out = (unsigned)strtoul(strrchr(device->name, '/') ? strrchr(device->name, '/') + 1 : device->name, NULL, 10);
    return OK;
}

int nvmlDeviceIsMigDeviceHandle(struct device *device, unsigned *out)
{
    if (!users)
        return UNINITIALIZED;
    *out = strchr(device->name, '/') != NULL;
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *device, struct device **out)
{
    char name[16];
    char *end;
    if (!users)
        return UNINITIALIZED;
    snprintf(name, sizeof name, "%s", device->name);
    if (!(end = strchr(name, '/')))
        return INVALID_ARGUMENT;
    *end = 0;
    return handle(name, out);
}
