// Loaded before the C library: reads as disks and signals may make them, by what FAULT says.
//   short        each brings a part of what was asked for, and rubbish behind it
//   interrupted  every other is interrupted by a signal
//   broken=N     those that touch byte N fail
//   indirect     those that would pass the cache by are refused
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_ulong calls, faults;

// Tells how often it did so.
__attribute__((destructor)) static void tell(void) { dprintf(1, "%lu faults\n", atomic_load(&faults)); }

ssize_t pread64(int file, void *into, size_t len, off64_t at) {
    const char *fault = getenv("FAULT");
    unsigned long call = atomic_fetch_add(&calls, 1);
    if (fault && strcmp(fault, "interrupted") == 0 && call % 2 == 0) {
        atomic_fetch_add(&faults, 1);
        errno = EINTR;
        return -1;
    }
    if (fault && strncmp(fault, "broken=", 7) == 0) {
        off64_t byte = strtoll(fault + 7, NULL, 10);
        if (at <= byte && byte < at + (off64_t)len) {
            atomic_fetch_add(&faults, 1);
            errno = EIO;
            return -1;
        }
    }
    if (fault && strcmp(fault, "indirect") == 0 && fcntl(file, F_GETFL) & O_DIRECT) {
        atomic_fetch_add(&faults, 1);
        errno = EINVAL;
        return -1;
    }
    ssize_t got = syscall(SYS_pread64, file, into, len, at);
    if (fault && strcmp(fault, "short") == 0 && got > 1) {
        ssize_t kept = 1 + (call * 2654435761u) % got;
        atomic_fetch_add(&faults, kept < got);
        memset((char *)into + kept, 0xa5, got - kept);
        return kept;
    }
    return got;
}
