/*
 * The part of nvml.c that is about calls that change hardware: MIG mode and instances, and the compute mode. They change
 * nothing: each adds a line with its arguments to the file of the table's name and ".calls", and answers from the table as
 * well. GPU instances are "<gpu>/gi<number>", compute instances have a "/ci<number>" more; the handles are known by these
 * names.
 */

struct placement {
    unsigned start, size;
};

struct profile {
    uint32_t version, id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory;
    char name[96];
};

struct instance_info {
    struct device *gpu;
    unsigned id, profile;
    struct placement placement;
};

struct compute_profile {
    uint32_t version, id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    char name[96];
};

struct compute_info {
    struct device *mig, *instance;
    unsigned id, profile;
    struct placement placement;
};

enum { COMPUTE_INSTANCE_PROFILES = 9, INSUFFICIENT_RESOURCES = 23 };

static void called(const char *function, struct device *device, const char *rest)
{
    char log[4112];
    FILE *calls;
    snprintf(log, sizeof log, "%s.calls", at);
    if ((calls = fopen(log, "a"))) {
        fprintf(calls, "%s %s%s\n", function, device->name, rest);
        fclose(calls);
    }
}

/* A handle of a thing within another: "<device>/<kind><number>". */
static int within(struct device *device, const char *kind, unsigned number, struct device **out)
{
    char name[16];
    if (snprintf(name, sizeof name, "%.8s/%s%u", device->name, kind, number) >= (int)sizeof name)
        return INVALID_ARGUMENT;
    return handle(name, out);
}

static int listed(struct device *device, const char *function, unsigned profile, const char *kind, struct device **out,
                  unsigned *many)
{
    const char *value = NULL;
    char *next;
    unsigned room = *many;
    int code = of_link(device, function, profile, &value);
    if (code == NOT_SUPPORTED) { /* a profile without instances */
        *many = 0;
        return OK;
    }
    if (code != OK)
        return code;
    for (*many = 0;; value = next) {
        unsigned number = (unsigned)strtoul(value, &next, 10);
        if (next == value)
            return OK;
        if (*many == room)
            return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
        if ((code = within(device, kind, number, &out[(*many)++])) != OK)
            return code;
    }
}

static int by_id(struct device *device, const char *function, unsigned id, const char *kind, struct device **out)
{
    const char *value = NULL;
    int code = of_link(device, function, id, &value);
    if (code == NOT_SUPPORTED)
        return NOT_FOUND;
    return code == OK ? within(device, kind, id, out) : code;
}

/* Does a thing that answers nothing; one that the table does not have succeeds. */
static int done(struct device *device, const char *function, const char *rest)
{
    const char *value = NULL;
    int code;
    called(function, device, rest);
    code = of(device, function, rest, &value);
    return code == NOT_SUPPORTED ? OK : code;
}

static int made(struct device *device, const char *function, const char *rest, const char *kind, struct device **out)
{
    const char *value = NULL;
    unsigned id = 0;
    int code;
    called(function, device, rest);
    code = of(device, function, rest, &value);
    if (code != OK)
        return code == NOT_SUPPORTED ? INSUFFICIENT_RESOURCES : code;
    number(code, value, &id);
    return within(device, kind, id, out);
}

/* The GPU, or the MIG device, that says it has this uuid, where the table has no line of its own for that. */
static int named(const char *uuid, struct device **out)
{
    static const char says[] = "nvmlDeviceGetUUID ";
    int code = NOT_FOUND;
    size_t i;
    pthread_mutex_lock(&one);
    for (i = 0; i < count && code == NOT_FOUND; i++)
        if (!strncmp(lines[i], says, sizeof says - 1) && !strcmp(lines[i] + strlen(lines[i]) + 1, uuid))
            code = found(lines[i] + sizeof says - 1, out);
    pthread_mutex_unlock(&one);
    return code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **out)
{
    const char *value = NULL;
    char key[160];
    int code;
    size_t i;
    for (i = 0; i < known; i++) /* "if any GPU has fallen off the bus", says nvml.h */
        if (!devices[i].left)
            return GPU_IS_LOST;
    snprintf(key, sizeof key, "nvmlDeviceGetHandleByUUID %s", uuid);
    code = answer(key, &value);
    if (code == NOT_SUPPORTED)
        return named(uuid, out);
    return code == OK ? handle(value, out) : code;
}

int nvmlDeviceSetMigMode(struct device *device, unsigned mode, unsigned *status)
{
    const char *value = NULL;
    char rest[16];
    int code;
    snprintf(rest, sizeof rest, " %u", mode);
    called("nvmlDeviceSetMigMode", device, rest);
    code = of(device, "nvmlDeviceSetMigMode", rest, &value);
    return number(code, value, status);
}

int nvmlDeviceGetGpuInstanceProfileInfoV(struct device *device, unsigned profile, struct profile *out)
{
    const char *value = NULL;
    int code;
    if (out->version != (2u << 24 | sizeof *out))
        return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    if (profile >= release()->profiles)
        return INVALID_ARGUMENT;
    code = of_link(device, "nvmlDeviceGetGpuInstanceProfileInfoV", profile, &value);
    if (code == OK && sscanf(value, "%u %u %u %llu %95[^\n]", &out->id, &out->slices, &out->instances, &out->memory,
                             out->name) != 5)
        return INVALID_ARGUMENT;
    if (code == OK && of_link(device, "profile engines", out->id, &value) == OK)
        sscanf(value, "%u %u %u %u %u", &out->copy, &out->decoders, &out->encoders, &out->jpeg, &out->ofa);
    return code;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct device *device, unsigned id, struct placement *out,
                                                  unsigned *many)
{
    const char *value = NULL;
    int used, code = of_link(device, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", id, &value);
    if (code != OK)
        return code;
    for (*many = 0; sscanf(value, "%u:%u%n", &out[*many].start, &out[*many].size, &used) == 2; value += used)
        ++*many;
    return OK;
}

int nvmlDeviceGetGpuInstances(struct device *device, unsigned id, struct device **out, unsigned *many)
{
    return listed(device, "nvmlDeviceGetGpuInstances", id, "gi", out, many);
}

int nvmlDeviceGetGpuInstanceById(struct device *device, unsigned id, struct device **out)
{
    return by_id(device, "nvmlDeviceGetGpuInstanceById", id, "gi", out);
}

int nvmlDeviceCreateGpuInstanceWithPlacement(struct device *device, unsigned id, const struct placement *placement,
                                             struct device **out)
{
    char rest[64];
    snprintf(rest, sizeof rest, " %u %u:%u", id, placement->start, placement->size);
    return made(device, "nvmlDeviceCreateGpuInstanceWithPlacement", rest, "gi", out);
}

int nvmlGpuInstanceGetInfo(struct device *instance, struct instance_info *out)
{
    const char *value = NULL;
    char *number = strstr(instance->name, "/gi");
    int code = of(instance, "nvmlGpuInstanceGetInfo", "", &value);
    if (code != OK)
        return code;
    out->gpu = NULL;
    out->id = number ? (unsigned)atoi(number + 3) : 0;
    return sscanf(value, "%u %u %u", &out->profile, &out->placement.start, &out->placement.size) == 3
               ? OK
               : INVALID_ARGUMENT;
}

int nvmlGpuInstanceDestroy(struct device *instance)
{
    return done(instance, "nvmlGpuInstanceDestroy", "");
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct device *instance, unsigned profile, unsigned engine,
                                                  struct compute_profile *out)
{
    const char *value = NULL;
    int code;
    if (out->version != (2u << 24 | sizeof *out))
        return 25;
    if (profile >= COMPUTE_INSTANCE_PROFILES || engine)
        return INVALID_ARGUMENT;
    code = of_link(instance, "nvmlGpuInstanceGetComputeInstanceProfileInfoV", profile, &value);
    if (code == OK && sscanf(value, "%u %u %u", &out->id, &out->slices, &out->instances) != 3)
        return INVALID_ARGUMENT;
    return code;
}

int nvmlGpuInstanceGetComputeInstances(struct device *instance, unsigned id, struct device **out, unsigned *many)
{
    return listed(instance, "nvmlGpuInstanceGetComputeInstances", id, "ci", out, many);
}

int nvmlGpuInstanceGetComputeInstanceById(struct device *instance, unsigned id, struct device **out)
{
    return by_id(instance, "nvmlGpuInstanceGetComputeInstanceById", id, "ci", out);
}

int nvmlGpuInstanceCreateComputeInstance(struct device *instance, unsigned id, struct device **out)
{
    char rest[16];
    snprintf(rest, sizeof rest, " %u", id);
    return made(instance, "nvmlGpuInstanceCreateComputeInstance", rest, "ci", out);
}

int nvmlComputeInstanceGetInfo_v2(struct device *compute, struct compute_info *out)
{
    const char *value = NULL;
    char *number = strstr(compute->name, "/ci"), mig[16];
    int code = of(compute, "nvmlComputeInstanceGetInfo_v2", "", &value);
    if (code != OK)
        return code;
    out->instance = NULL;
    out->id = number ? (unsigned)atoi(number + 3) : 0;
    if (sscanf(value, "%u %u %u %15s", &out->profile, &out->placement.start, &out->placement.size, mig) != 4)
        return INVALID_ARGUMENT;
    return handle(mig, &out->mig);
}

int nvmlComputeInstanceDestroy(struct device *compute)
{
    return done(compute, "nvmlComputeInstanceDestroy", "");
}

NUMBER(nvmlDeviceGetComputeMode)

int nvmlDeviceSetComputeMode(struct device *device, unsigned mode)
{
    char rest[16];
    snprintf(rest, sizeof rest, " %u", mode);
    return done(device, "nvmlDeviceSetComputeMode", rest);
}
