/* Loaded before a program's own libraries (LD_PRELOAD): moves one of its clocks, and only that.
 *
 * SKEW_FILE names a file of eight bytes, a signed number of microseconds in the byte order of the machine. It is mapped,
 * so that a write to it moves the clock at once. CLOCK_MONOTONIC stays as it is: timers go on undisturbed.
 *
 * The clock is that of the day. With RESUMED_FIFO it is CLOCK_BOOTTIME, as if the machine had been suspended, and each
 * timer of timerfd_create is that FIFO: bytes written to it are the kernel's word that the machine goes on.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MICROSECONDS 1000000LL

static const volatile int64_t *offset;
static const char *resumed;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("SKEW_FILE");
    resumed = getenv("RESUMED_FIFO");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset = mapped;
    close(file);
}

/* The functions below stand in for those of libc, so the true time comes straight from the kernel. */
int clock_gettime(clockid_t clock, struct timespec *result) {
    int status = syscall(SYS_clock_gettime, clock, result);
    int moves = resumed ? clock == CLOCK_BOOTTIME : clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (status == 0 && offset && moves) {
        int64_t moved = result->tv_sec * MICROSECONDS + result->tv_nsec / 1000 + *offset;
        result->tv_sec = moved / MICROSECONDS;
        result->tv_nsec = moved % MICROSECONDS * 1000 + result->tv_nsec % 1000;
    }
    return status;
}

int gettimeofday(struct timeval *restrict result, void *restrict timezone) {
    struct timespec now;
    (void)timezone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    result->tv_sec = now.tv_sec;
    result->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

int timerfd_create(int clock, int flags) {
    return resumed ? open(resumed, O_RDWR | flags) : syscall(SYS_timerfd_create, clock, flags);
}

int timerfd_settime(int timer, int flags, const struct itimerspec *set, struct itimerspec *before) {
    if (!resumed) return syscall(SYS_timerfd_settime, timer, flags, set, before);
    return flags == (TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET) && set->it_value.tv_sec > 0 ? 0 : -1;
}
