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

struct attributes {
    unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, slices, compute;
    unsigned long long memory_mib;
};

int nvmlDeviceGetAttributes_v2(struct device *device, struct attributes *out) /* "<GPU slices> <compute slices> <MiB>" */
{
    const char *value = NULL;
    int code = of(device, "nvmlDeviceGetAttributes_v2", "", &value);
    memset(out, 0, sizeof *out);
    if (code == OK && sscanf(value, "%u %u %llu", &out->slices, &out->compute, &out->memory_mib) != 3)
        return INVALID_ARGUMENT;
    return code;
}

int nvmlDeviceGetAttributes(struct device *device, struct attributes *out)
{
    return nvmlDeviceGetAttributes_v2(device, out);
}

struct plain_profile { /* as struct profile, without version and name */
    uint32_t numbers[10];
    unsigned long long memory;
};

int nvmlDeviceGetGpuInstanceProfileInfo(struct device *device, unsigned profile, struct plain_profile *out)
{
    struct profile full = {.version = 2u << 24 | sizeof full};
    int code = nvmlDeviceGetGpuInstanceProfileInfoV(device, profile, &full);
    memcpy(out->numbers, &full.id, sizeof out->numbers);
    out->memory = full.memory;
    return code;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(struct device *instance, unsigned profile, unsigned engine, uint32_t *out)
{
    struct compute_profile full = {.version = 2u << 24 | sizeof full};
    int code = nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, profile, engine, &full);
    memcpy(out, &full.id, 9 * sizeof full.id);
    return code;
}
