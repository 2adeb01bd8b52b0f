/* Stands in for the driver's libnvidia-ml.so.1 where there is no GPU.
 *
 * NVML_STUB lists figures as NAME=NUMBER, separated by spaces. `gpus` is the number of GPUs; every other figure is GPU
 * 0's, and the others are sound. A figure of -1 is not supported by the board. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK 0
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define GPU_IS_LOST 15
#define LINKS 18

static int reads, link_reads, events;

static long figure(const char *name, long otherwise) {
    const char *all = getenv("NVML_STUB");
    size_t length = strlen(name);
    for (const char *at = all; at && (at = strstr(at, name)); at += length)
        if ((at == all || at[-1] == ' ') && at[length] == '=')
            return atol(at + length + 1);
    return otherwise;
}

static long of(void *gpu, const char *name, long sound) { return gpu == (void *)1 ? figure(name, sound) : sound; }

#define GIVE(type)                                                                                                     \
    if (found < 0)                                                                                                     \
        return NOT_SUPPORTED;                                                                                          \
    *value = (type)found;                                                                                              \
    return OK

int nvmlInitWithFlags(unsigned flags) {
    reads = link_reads = events = 0;
    return (int)figure("init", OK);
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "an error of the stub"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "580.95.05") < 0; }
int nvmlDeviceGetCount_v2(unsigned *value) {
    *value = (unsigned)figure("gpus", 8);
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    *gpu = (void *)(long)(index + 1);
    return OK;
}
int nvmlDeviceGetName(void *gpu, char *text, unsigned size) {
    snprintf(text, size, "NVIDIA %s", of(gpu, "other_gpu", 0) ? "A100-SXM4-80GB" : "H100 80GB HBM3");
    return OK;
}
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) {
    snprintf(text, size, "GPU-%04ld", (long)gpu);
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, unsigned long long *value) {
    long found = of(gpu, "clocks", 0);
    GIVE(unsigned long long);
}
int nvmlDeviceGetTotalEccErrors(void *gpu, int type, int counter, unsigned long long *value) {
    long found = of(gpu, "ecc", 0);
    GIVE(unsigned long long);
}
int nvmlDeviceGetRemappedRows(void *gpu, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failure) {
    if (of(gpu, "lost", 0))
        return GPU_IS_LOST;
    *correctable = *uncorrectable = 0;
    *pending = (unsigned)of(gpu, "rows_pending", 0);
    *failure = (unsigned)of(gpu, "rows_failed", 0);
    return OK;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void *gpu, unsigned *value) {
    long found = of(gpu, "pcie_generation", 5);
    GIVE(unsigned);
}
int nvmlDeviceGetMaxPcieLinkGeneration(void *gpu, unsigned *value) {
    *value = 5;
    return OK;
}
int nvmlDeviceGetCurrPcieLinkWidth(void *gpu, unsigned *value) {
    long found = of(gpu, "pcie_width", 16);
    GIVE(unsigned);
}
int nvmlDeviceGetMaxPcieLinkWidth(void *gpu, unsigned *value) {
    *value = 16;
    return OK;
}
int nvmlDeviceGetPcieReplayCounter(void *gpu, unsigned *value) {
    long found = of(gpu, "replays", 0);
    if (gpu == (void *)1)
        found *= reads++; /* 0 before the load of the checks */
    GIVE(unsigned);
}
int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *value) {
    if (link >= LINKS || of(gpu, "links_down", 0) < 0)
        return NOT_SUPPORTED;
    *value = link >= (unsigned)of(gpu, "links_down", 0);
    return OK;
}
int nvmlDeviceGetNvLinkErrorCounter(void *gpu, unsigned link, int counter, unsigned long long *value) {
    long found = link == 0 && counter == 0 ? of(gpu, "link_errors", 0) : 0;
    if (found > 0)
        found *= link_reads++; /* 0 before the load of the checks */
    GIVE(unsigned long long);
}
int nvmlDeviceGetP2PStatus(void *gpu, void *other, int capability, int *value) {
    long found = other == (void *)2 ? of(gpu, "p2p", 0) : 0;
    GIVE(int);
}
struct fabric {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
};
int nvmlDeviceGetGpuFabricInfoV(void *gpu, struct fabric *value) {
    value->state = (unsigned char)of(gpu, "fabric", 3);
    value->status = (int)of(gpu, "fabric_status", OK);
    return OK;
}
int nvmlDeviceGetVirtualizationMode(void *gpu, unsigned *value) {
    *value = (unsigned)of(gpu, "virtualization", 1);
    return OK;
}
int nvmlDeviceGetMigMode(void *gpu, unsigned *value, unsigned *pending) {
    *value = *pending = (unsigned)of(gpu, "mig", 0);
    return OK;
}
int nvmlEventSetCreate(void **set) {
    *set = (void *)1;
    return OK;
}
int nvmlDeviceRegisterEvents(void *gpu, unsigned long long types, void *set) { return OK; }
struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *value) {
    long found = of(gpu, "process", 0);
    if (!found) {
        *count = 0;
        return OK;
    }
    if (!value) {
        *count = 1;
        return INSUFFICIENT_SIZE;
    }
    *count = 1;
    *value = (struct process){(unsigned)found, 1 << 20, 0, 0};
    return OK;
}
struct event {
    void *gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};
int nvmlEventSetWait_v2(void *set, struct event *value, unsigned wait_ms) {
    if (!figure("xid", 0) || events++)
        return TIMEOUT;
    *value = (struct event){(void *)1, 8, (unsigned long long)figure("xid", 0), 0, 0};
    return OK;
}
