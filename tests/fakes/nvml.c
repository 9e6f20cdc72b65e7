/*
 * A libnvidia-ml.so.1 for tests: every function answers from a table, read from the file named by NVML_TABLE, or
 * without that variable from "table" beside the library, whenever the file changed. As in the original a session knows
 * the GPUs that were there when it began, no more and no fewer, and one that is lost stays lost for it; one that begins
 * while others are open knows what they know.
 * Each beginning adds a line to the file of the table's name and ".sessions".
 *
 * A line is "<function> <arguments>=<answer>": "nvmlDeviceGetUUID 0=GPU-...". GPUs are named by index, MIG devices
 * "<gpu>/<slot>". An answer "!15" is that return value. "lost 3=20": GPU 3 is lost after 20 more queries.
 * "device=PATH": without that file there is no driver. What is not in the table is not supported. Compiled with -DOLD,
 * it lacks what drivers of long ago lack; what those of today lack follows from the driver's version in the table.
 * Answers with " then " between them are given one after the other; the last one stays.
 *
 * Calls that change hardware are in nvml_calls.c.
 *
 * Types and values: nvml.h, as far as nvidia-ml-py uses them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15
};

struct device {
    char name[16];
    long left; /* queries until it is lost; negative: never */
};

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};

struct field {
    uint32_t id, scope;
    int64_t timestamp, latency;
    uint32_t type, code;
    union {
        uint32_t number;
        uint64_t whole;
    } value;
};

struct fabric {
    unsigned char cluster[16];
    uint32_t status, clique, state;
};

struct fabric_v {
    uint32_t version;
    struct fabric fabric;
    uint32_t health;
};

static char *text;
static struct stat seen;
static unsigned gpus; /* when the session began */
static char at[4096];
static pthread_mutex_t one = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* as the original, for any thread */
static char **lines;
static size_t count;
static int users;
static struct device devices[4096];
static size_t known;

static int order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int order_key(const void *key, const void *line)
{
    return strcmp(key, *(char *const *)line); /* a line's key ends at a zero, its answer follows */
}

static const char *look_up(const char *key)
{
    static char now[4096];
    char **line = bsearch(key, lines, count, sizeof *lines, order_key);
    char *all = line ? *line + strlen(key) + 1 : NULL;
    char *next = all ? strstr(all, " then ") : NULL;
    if (!next)
        return all;
    snprintf(now, sizeof now, "%.*s", (int)(next - all), all);
    memmove(all, next + 6, strlen(next + 6) + 1);
    return now;
}

static void refresh(void);

static int answer(const char *key, const char **value)
{
    if (!users)
        return UNINITIALIZED;
    pthread_mutex_lock(&one);
    refresh();
    *value = look_up(key);
    pthread_mutex_unlock(&one);
    if (!*value)
        return NOT_SUPPORTED;
    return (*value)[0] == '!' ? atoi(*value + 1) : OK;
}

static int lost(struct device *device)
{
    if (device->left == 0)
        return 1;
    if (device->left > 0)
        device->left--;
    return 0;
}

static int of(struct device *device, const char *function, const char *rest, const char **value)
{
    char key[160];
    if (!users)
        return UNINITIALIZED;
    refresh();
    if (lost(device))
        return GPU_IS_LOST;
    snprintf(key, sizeof key, "%s %s%s", function, device->name, rest);
    return answer(key, value);
}

static int of_link(struct device *device, const char *function, unsigned link, const char **value)
{
    char rest[16];
    snprintf(rest, sizeof rest, " %u", link);
    return of(device, function, rest, value);
}

static int of_two(struct device *a, struct device *b, const char *function, const char **value)
{
    char rest[32];
    if (lost(b))
        return GPU_IS_LOST;
    snprintf(rest, sizeof rest, " %s", b->name);
    return of(a, function, rest, value);
}

static int number(int code, const char *value, unsigned *out)
{
    if (code == OK)
        *out = (unsigned)strtoul(value, NULL, 0);
    return code;
}

static int two_numbers(int code, const char *value, unsigned *a, unsigned *b)
{
    return code == OK && sscanf(value, "%u %u", a, b) != 2 ? INVALID_ARGUMENT : code;
}

static int words(int code, const char *value, char *out, unsigned length)
{
    if (code == OK && strlen(value) >= length)
        return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    if (code == OK)
        strcpy(out, value);
    return code;
}

static int bus_id(int code, const char *value, struct pci *out)
{
    if (code != OK)
        return code;
    memset(out, 0, sizeof *out);
    if (sscanf(value, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return INVALID_ARGUMENT;
    snprintf(out->text, sizeof out->text, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    return OK;
}

static long left_of(const char *name)
{
    char key[64];
    const char *left;
    snprintf(key, sizeof key, "lost %s", name);
    left = look_up(key);
    return left ? atol(left) : -1;
}

static int found(const char *name, struct device **out)
{
    size_t i = 0;
    while (i < known && strcmp(devices[i].name, name))
        i++;
    if (i == sizeof devices / sizeof *devices)
        return INVALID_ARGUMENT;
    if (i == known) {
        known++;
        snprintf(devices[i].name, sizeof devices[i].name, "%s", name);
        devices[i].left = left_of(name);
    }
    *out = &devices[i];
    return OK;
}

static int handle(const char *name, struct device **out)
{
    int code;
    pthread_mutex_lock(&one);
    code = found(name, out);
    pthread_mutex_unlock(&one);
    return code;
}

static int table(void)
{
    const char *path = getenv("NVML_TABLE");
    Dl_info library;
    if (path)
        return snprintf(at, sizeof at, "%s", path) < (int)sizeof at;
    if (!dladdr((void *)table, &library) || !(path = strrchr(library.dli_fname, '/')))
        return 0;
    return snprintf(at, sizeof at, "%.*s/table", (int)(path - library.dli_fname), library.dli_fname) < (int)sizeof at;
}

static int load(void) /* what was there before is left: another thread may be reading it */
{
    FILE *file = fopen(at, "rb");
    size_t length, room = 0;
    char *line, *middle, *end;
    if (!file)
        return 0;
    fstat(fileno(file), &seen);
    length = (size_t)seen.st_size;
    text = calloc(length + 1, 1);
    length = fread(text, 1, length, file);
    fclose(file);
    for (end = text; *end; end++)
        room += *end == '\n';
    lines = calloc(room + 1, sizeof *lines);
    count = 0;
    for (line = text; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        if ((middle = strchr(line, '='))) {
            *middle = 0;
            lines[count++] = line;
        }
    }
    qsort(lines, count, sizeof *lines, order);
    return 1;
}

/* Whether the file is another one than was read. */
static int changed(void)
{
    struct stat now;
    return !text || stat(at, &now) || now.st_ino != seen.st_ino || now.st_mtim.tv_sec != seen.st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec;
}

static void refresh(void)
{
    size_t i;
    pthread_mutex_lock(&one);
    if (!access(at, R_OK) && changed() && load())
        for (i = 0; i < known; i++)
            if (devices[i].left)
                devices[i].left = left_of(devices[i].name);
    pthread_mutex_unlock(&one);
}

static int begin(void)
{
    const char *value;
    char log[4112];
    FILE *sessions;
    size_t i;
    int anew;
    if (!table() || ((anew = changed()) && !load()))
        return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    snprintf(log, sizeof log, "%s.sessions", at);
    if ((sessions = fopen(log, "a"))) {
        fputs("begun\n", sessions);
        fclose(sessions);
    }
    for (i = 0; i < known; i++) /* handles are good for every session */
        if (!users || (anew && devices[i].left))
            devices[i].left = left_of(devices[i].name);
    value = look_up("nvmlInitWithFlags");
    if (value)
        return atoi(value + 1);
    value = look_up("device");
    if (value && access(value, R_OK))
        return 9;
    if (users++) /* it is only counted, and sees what the others see */
        return OK;
    value = look_up("nvmlDeviceGetCount_v2");
    gpus = value ? (unsigned)strtoul(value, NULL, 0) : 0;
    return OK;
}

int nvmlInitWithFlags(unsigned flags)
{
    int code;
    (void)flags;
    pthread_mutex_lock(&one);
    code = begin();
    pthread_mutex_unlock(&one);
    return code;
}

int nvmlShutdown(void)
{
    if (!users)
        return UNINITIALIZED;
    users--;
    return OK;
}

const char *nvmlErrorString(unsigned code)
{
    (void)code;
    return "an error of the test library";
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out)
{
    char name[16];
    const char *value = NULL;
    struct device *device;
    int code;
    snprintf(name, sizeof name, "%u", index);
    if (!users)
        return UNINITIALIZED;
    if (index >= gpus)
        return INVALID_ARGUMENT;
    if ((code = handle(name, &device)) == OK)
        code = of(device, "nvmlDeviceGetHandleByIndex_v2", "", &value);
    if (code == OK)
        *out = device;
    return code;
}

/* A function that finds its answer (`found`) and gives it back in its type (`given`). */
#define QUERY(function, arguments, found, given)                                                                       \
    int function arguments                                                                                             \
    {                                                                                                                  \
        const char *value = NULL;                                                                                      \
        int code = found;                                                                                              \
        return given;                                                                                                  \
    }

#define TEXT(function)                                                                                                 \
    QUERY(function, (struct device *device, char *out, unsigned length), of(device, #function, "", &value),            \
          words(code, value, out, length))
#define NUMBER(function)                                                                                               \
    QUERY(function, (struct device *device, unsigned *out), of(device, #function, "", &value),                         \
          number(code, value, out))
#define TWO_NUMBERS(function)                                                                                          \
    QUERY(function, (struct device *device, unsigned *a, unsigned *b), of(device, #function, "", &value),              \
          two_numbers(code, value, a, b))
#define OF_LINK(function)                                                                                              \
    QUERY(function, (struct device *device, unsigned link, unsigned *out), of_link(device, #function, link, &value),   \
          number(code, value, out))

QUERY(nvmlSystemGetDriverVersion, (char *out, unsigned length), answer("nvmlSystemGetDriverVersion", &value),
      words(code, value, out, length))
QUERY(nvmlSystemGetCudaDriverVersion_v2, (int *out), answer("nvmlSystemGetCudaDriverVersion_v2", &value),
      number(code, value, (unsigned *)out))
QUERY(nvmlDeviceGetCount_v2, (unsigned *out), answer("nvmlDeviceGetCount_v2", &value),
      code == OK && strtoul(value, NULL, 0) < 1025 ? (*out = gpus, OK) : number(code, value, out))
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)
NUMBER(nvmlDeviceGetMinorNumber)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit)
NUMBER(nvmlDeviceGetPowerManagementLimit)
NUMBER(nvmlDeviceGetPersistenceMode)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
TWO_NUMBERS(nvmlDeviceGetCudaComputeCapability)
OF_LINK(nvmlDeviceGetNvLinkState)
QUERY(nvmlDeviceGetPciInfo_v3, (struct device *device, struct pci *out),
      of(device, "nvmlDeviceGetPciInfo_v3", "", &value), bus_id(code, value, out))
QUERY(nvmlDeviceGetNvLinkRemotePciInfo_v2, (struct device *device, unsigned link, struct pci *out),
      of_link(device, "nvmlDeviceGetNvLinkRemotePciInfo_v2", link, &value), bus_id(code, value, out))
QUERY(nvmlDeviceGetTopologyCommonAncestor, (struct device *a, struct device *b, unsigned *out),
      of_two(a, b, "nvmlDeviceGetTopologyCommonAncestor", &value), number(code, value, out))

int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long *out) /* total, free, used */
{
    const char *value = NULL;
    int code = of(device, "nvmlDeviceGetMemoryInfo", "", &value);
    if (code == OK) {
        out[0] = out[1] = strtoull(value, NULL, 0);
        out[2] = 0;
    }
    return code;
}

#ifndef OLD

/*
 * What a driver knows, by the nvml.h of its CUDA release (the packages nvidia-nvml-dev-cu12 12.2.140, 12.4.127 and
 * 12.8.90, nvidia-nvml-dev 13.0.87): how many fields (NVML_FI_MAX) and profiles of GPU instances
 * (NVML_GPU_INSTANCE_PROFILE_COUNT), and whether it has nvmlDeviceGetGpuFabricInfoV. All else that is asked here is in
 * all of them. A number beyond is an invalid argument.
 */
static const struct release {
    unsigned first, fields, profiles, fabric_v;
} releases[] = {{580, 274, 0x11, 1}, {570, 269, 0xD, 1}, {550, 200, 0xA, 1}, {0, 197, 0xA, 0}};

static const struct release *release(void)
{
    const struct release *found = releases;
    unsigned major;
    char **line;
    pthread_mutex_lock(&one);
    refresh();
    line = bsearch("nvmlSystemGetDriverVersion", lines, count, sizeof *lines, order_key);
    major = line ? (unsigned)atoi(*line + strlen(*line) + 1) : 0;
    pthread_mutex_unlock(&one);
    while (major && found->first > major) /* without a version it is the newest */
        found++;
    return found;
}

OF_LINK(nvmlDeviceGetNvLinkRemoteDeviceType)

static int large(int code, const char *value, unsigned long long *out)
{
    if (code == OK)
        *out = strtoull(value, NULL, 0);
    return code;
}

QUERY(nvmlDeviceGetCurrentClocksEventReasons, (struct device *device, unsigned long long *out),
      of(device, "nvmlDeviceGetCurrentClocksEventReasons", "", &value), large(code, value, out))
QUERY(nvmlDeviceGetTotalEccErrors, (struct device *device, unsigned kind, unsigned counter, unsigned long long *out),
      (kind == 1 && counter == 0) ? of(device, "nvmlDeviceGetTotalEccErrors", "", &value) : INVALID_ARGUMENT,
      large(code, value, out))
QUERY(nvmlDeviceGetRemappedRows,
      (struct device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed),
      of(device, "nvmlDeviceGetRemappedRows", "", &value),
      (code == OK && sscanf(value, "%u %u %u %u", corrected, uncorrected, pending, failed) != 4) ? INVALID_ARGUMENT
                                                                                               : code)
TWO_NUMBERS(nvmlDeviceGetMigMode)

int nvmlDeviceGetMemoryAffinity(struct device *device, unsigned size, unsigned long *masks, unsigned scope)
{
    const char *value = NULL;
    int code = of(device, "nvmlDeviceGetMemoryAffinity", "", &value);
    if (code != OK)
        return code;
    if (scope || size < 1) /* NVML_AFFINITY_SCOPE_NODE alone is in the table */
        return INVALID_ARGUMENT;
    memset(masks, 0, size * sizeof *masks);
    masks[0] = strtoul(value, NULL, 0);
    return OK;
}

QUERY(nvmlDeviceGetMaxMigDeviceCount, (struct device *device, unsigned *out), /* none where there is no MIG, says nvml.h */
      of(device, "nvmlDeviceGetMaxMigDeviceCount", "", &value),
      code == NOT_SUPPORTED ? (*out = 0, OK) : number(code, value, out))
NUMBER(nvmlDeviceGetGpuInstanceId)
NUMBER(nvmlDeviceGetComputeInstanceId)

int nvmlDeviceGetP2PStatus(struct device *a, struct device *b, unsigned index, unsigned *out)
{
    const char *value = NULL;
    char function[64];
    int code;
    snprintf(function, sizeof function, "nvmlDeviceGetP2PStatus %u", index);
    code = of_two(a, b, function, &value);
    return number(code, value, out);
}

enum { LINK_STATE = 165 }; /* NVML_FI_DEV_NVLINK_GET_STATE */

int nvmlDeviceGetFieldValues(struct device *device, int wanted, struct field *fields)
{
    const char *value = NULL;
    int i, code = of(device, "nvmlDeviceGetFieldValues", "", &value);
    if (code != OK && code != NOT_SUPPORTED)
        return code;
    for (i = 0; i < wanted; i++) {
        char rest[32];
        snprintf(rest, sizeof rest, " %u %u", fields[i].id, fields[i].scope);
        fields[i].type = 1; /* unsigned int */
        fields[i].value.whole = 0;
        fields[i].code = fields[i].id < release()->fields ? (uint32_t)of(device, "nvmlDeviceGetFieldValues", rest, &value)
                                                          : INVALID_ARGUMENT;
        if (fields[i].code == NOT_SUPPORTED && fields[i].id == LINK_STATE) /* what its own function says, too */
            fields[i].code = (uint32_t)of_link(device, "nvmlDeviceGetNvLinkState", fields[i].scope, &value);
        number((int)fields[i].code, value, &fields[i].value.number);
    }
    return OK;
}

static int fabric_info(struct device *device, const char *function, struct fabric *out)
{
    const char *value = NULL;
    char cluster[33];
    unsigned i, byte;
    int code = of(device, function, "", &value);
    if (code != OK)
        return code;
    if (sscanf(value, "%u %u %u %32s", &out->state, &out->status, &out->clique, cluster) != 4)
        return INVALID_ARGUMENT;
    for (i = 0; i < 16 && sscanf(cluster + 2 * i, "%2x", &byte) == 1; i++)
        out->cluster[i] = (unsigned char)byte;
    return OK;
}

int nvmlDeviceGetGpuFabricInfo(struct device *device, struct fabric *out)
{
    int code = fabric_info(device, "nvmlDeviceGetGpuFabricInfo", out);
    return code == NOT_SUPPORTED ? fabric_info(device, "nvmlDeviceGetGpuFabricInfoV", out) : code;
}

int nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric_v *out)
{
    if (!release()->fabric_v) /* as the binding says it of a library without it */
        return FUNCTION_NOT_FOUND;
    if (out->version != (2u << 24 | sizeof *out))
        return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    const char *value = NULL;
    out->health = 0;
    if (of(device, "fabric health", "", &value) == OK)
        number(OK, value, &out->health);
    return fabric_info(device, "nvmlDeviceGetGpuFabricInfoV", &out->fabric);
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned slot, struct device **out)
{
    char name[16];
    const char *value = NULL;
    int code = of_link(device, "nvmlDeviceGetMigDeviceHandleByIndex", slot, &value);
    if (code == NOT_SUPPORTED)
        return NOT_FOUND;
    if (code != OK)
        return code;
    if (snprintf(name, sizeof name, "%.7s/%u", device->name, slot) >= (int)sizeof name)
        return INVALID_ARGUMENT;
    return handle(name, out);
}

struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *wanted, struct process *out)
{
    const char *value = NULL;
    char *next;
    unsigned room = *wanted;
    int code = of(device, "nvmlDeviceGetComputeRunningProcesses_v3", "", &value);
    if (code != OK)
        return code;
    for (*wanted = 0;; value = next, ++*wanted) { /* "<pid>", in MIG mode "<pid>@<GPU instance>", with blanks between */
        unsigned pid = (unsigned)strtoul(value, &next, 10), instance = ~0u;
        if (next == value)
            break;
        if (*next == '@')
            instance = (unsigned)strtoul(next + 1, &next, 10);
        if (*wanted < room)
            out[*wanted] = (struct process){pid, 0, instance, instance == ~0u ? ~0u : 0};
    }
    return *wanted > room ? 7 : OK; /* NVML_ERROR_INSUFFICIENT_SIZE */
}

/* "Not supported in MIG mode", say both in nvml.h. */
static int in_mig_mode(struct device *device)
{
    const char *value = NULL;
    return of(device, "nvmlDeviceGetMigMode", "", &value) == OK && value[0] == '1';
}

int nvmlDeviceGetUtilizationRates(struct device *device, unsigned *out) /* percent of the GPU, and of its memory */
{
    const char *value = NULL;
    int code = of(device, "nvmlDeviceGetUtilizationRates", "", &value);
    if (code == OK && in_mig_mode(device))
        return NOT_SUPPORTED;
    return two_numbers(code, value, &out[0], &out[1]);
}

struct sample {
    unsigned pid;
    unsigned long long at;
    unsigned multiprocessors, memory, encoders, decoders;
};

/*
 * Of "<pid>:<microseconds>:<multiprocessors>:<memory>:<encoders>:<decoders>" with blanks between them those after a
 * moment; without any it is not found (nvml.h). Who gives no room is told how much is needed.
 */
int nvmlDeviceGetProcessUtilization(struct device *device, struct sample *out, unsigned *many, unsigned long long since)
{
    const char *value = NULL;
    struct sample one;
    unsigned room = out ? *many : 0;
    int used, code = of(device, "nvmlDeviceGetProcessUtilization", "", &value);
    if (code == OK && in_mig_mode(device))
        return NOT_SUPPORTED;
    if (code != OK)
        return code;
    for (*many = 0; sscanf(value, "%u:%llu:%u:%u:%u:%u%n", &one.pid, &one.at, &one.multiprocessors, &one.memory,
                           &one.encoders, &one.decoders, &used) == 6; value += used)
        if (one.at > since && ++*many <= room)
            out[*many - 1] = one;
    if (!*many)
        return NOT_FOUND;
    return *many > room ? 7 : OK;
}

#include "nvml_calls.c"
#include "nvml_programs.c"

#endif
