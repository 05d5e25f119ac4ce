/* Records what a process does to the files below a folder: preloaded into it (LD_PRELOAD).

   POWERLOSS_ROOT is the folder, POWERLOSS_LOG the file that the records are appended to. A record is

       op (1 byte)  n1 (4)  n2 (4)  inode (8)  a (8)  b (8)  n1 bytes of a path  n2 bytes of data

   in the machine's byte order. One lock is held over the call and its record, so the log has the order of the calls. A call
   that would change a file unseen ends the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 'c', WRITE = 'w', TRUNCATE = 't', SYNC = 's', SYNC_FOLDER = 'd', RENAME = 'r', UNLINK = 'u', LINK = 'l',
       MKDIR = 'm', RMDIR = 'x', MARK = '!' };
#define FDS 4096

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char root[PATH_MAX];
static size_t root_length;
static int out = -1;
static char kind[FDS]; /* 0: not below the root, 1: a file, 2: a folder */
static char *paths[FDS];

#define REAL(type, name, ...) static type (*real_##name)(__VA_ARGS__)
REAL(int, open, const char *, int, ...);
REAL(int, openat, int, const char *, int, ...);
REAL(int, close, int);
REAL(ssize_t, write, int, const void *, size_t);
REAL(ssize_t, writev, int, const struct iovec *, int);
REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
REAL(ssize_t, sendfile64, int, int, off64_t *, size_t);
REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
REAL(int, ftruncate64, int, off64_t);
REAL(int, truncate64, const char *, off64_t);
REAL(int, fallocate64, int, int, off64_t, off64_t);
REAL(int, posix_fallocate64, int, off64_t, off64_t);
REAL(int, fsync, int);
REAL(int, fdatasync, int);
REAL(int, rename, const char *, const char *);
REAL(int, renameat, int, const char *, int, const char *);
REAL(int, unlink, const char *);
REAL(int, unlinkat, int, const char *, int);
REAL(int, link, const char *, const char *);
REAL(int, linkat, int, const char *, int, const char *, int);
REAL(int, mkdir, const char *, mode_t);
REAL(int, rmdir, const char *);

static void fail(const char *what) {
    dprintf(2, "record.c: %s is not recorded\n", what);
    abort();
}

__attribute__((constructor)) static void begin(void) {
#define FIND(name) if (!(*(void **)&real_##name = dlsym(RTLD_NEXT, #name))) fail(#name)
    FIND(open); FIND(openat); FIND(close); FIND(write); FIND(writev); FIND(pwrite64); FIND(sendfile64);
    FIND(copy_file_range); FIND(ftruncate64); FIND(truncate64); FIND(fallocate64); FIND(posix_fallocate64); FIND(fsync);
    FIND(fdatasync); FIND(rename); FIND(renameat); FIND(unlink); FIND(unlinkat); FIND(link); FIND(linkat); FIND(mkdir);
    FIND(rmdir);
    const char *folder = getenv("POWERLOSS_ROOT"), *log = getenv("POWERLOSS_LOG");
    if (!folder || !log || !realpath(folder, root)) return;
    root_length = strlen(root);
    out = real_open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (out < 0) fail("the log");
}

/* The path below the root, without the root; NULL: it is elsewhere. Parts that are links are not followed. */
static const char *below(int at, const char *path, char *buffer) {
    char base[PATH_MAX] = "";
    if (out < 0 || !path) return NULL;
    if (path[0] != '/') {
        if (at == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return NULL;
        } else {
            char name[64];
            snprintf(name, sizeof name, "/proc/self/fd/%d", at);
            ssize_t length = readlink(name, base, sizeof base - 1);
            if (length < 0) return NULL;
            base[length] = 0;
        }
        strcat(base, "/");
    }
    if (snprintf(buffer, PATH_MAX, "%s%s", base, path) >= PATH_MAX) return NULL;
    if (strncmp(buffer, root, root_length) || (buffer[root_length] && buffer[root_length] != '/')) return NULL;
    const char *rest = buffer + root_length;
    while (*rest == '/') rest++;
    return rest;
}

static void record(char op, uint64_t inode, int64_t a, int64_t b, const char *path, const void *data, uint32_t size) {
    unsigned char head[33];
    uint32_t length = path ? strlen(path) : 0;
    head[0] = op;
    memcpy(head + 1, &length, 4);
    memcpy(head + 5, &size, 4);
    memcpy(head + 9, &inode, 8);
    memcpy(head + 17, &a, 8);
    memcpy(head + 25, &b, 8);
    struct iovec parts[3] = {{head, sizeof head}, {(void *)path, length}, {(void *)data, size}};
    if (real_writev(out, parts, 3) != (ssize_t)(sizeof head + length + size)) fail("a record: no room");
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

static int is_seen(int fd) { return out >= 0 && fd >= 0 && fd < FDS && kind[fd]; }

static int opened(int fd, const char *rest, int is_new, int flags) {
    if (fd < 0) return fd;
    if (fd >= FDS) fail("a descriptor of so high a number");
    struct stat found;
    fstat(fd, &found);
    kind[fd] = S_ISDIR(found.st_mode) ? 2 : 1;
    free(paths[fd]);
    paths[fd] = strdup(rest);
    if (kind[fd] == 1 && is_new) record(CREATE, found.st_ino, 0, 0, rest, NULL, 0);
    else if (kind[fd] == 1 && (flags & O_TRUNC)) record(TRUNCATE, found.st_ino, 0, 0, rest, NULL, 0);
    return fd;
}

#define BEGIN char buffer[PATH_MAX], other[PATH_MAX]; (void)buffer; (void)other; pthread_mutex_lock(&lock)
#define END(value) do { int saved = errno; pthread_mutex_unlock(&lock); errno = saved; return value; } while (0)

int openat(int at, const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    BEGIN;
    const char *rest = below(at, path, buffer);
    struct stat found;
    int is_new = rest && (flags & O_CREAT) && fstatat(at, path, &found, 0);
    int fd = real_openat(at, path, flags, mode);
    if (rest) opened(fd, rest, is_new, flags);
    END(fd);
}
int openat64(int at, const char *path, int flags, ...) __attribute__((alias("openat")));

int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    return openat(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int creat(const char *path, mode_t mode) { return openat(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) __attribute__((alias("creat")));

int close(int fd) {
    BEGIN;
    if (is_seen(fd)) kind[fd] = 0;
    int done = real_close(fd);
    END(done);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (!is_seen(fd)) return real_pwrite64(fd, data, size, at);
    BEGIN;
    ssize_t done = real_pwrite64(fd, data, size, at);
    if (done > 0) record(WRITE, inode_of(fd), at, 0, paths[fd], data, done);
    END(done);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) __attribute__((alias("pwrite64")));

ssize_t write(int fd, const void *data, size_t size) {
    if (!is_seen(fd)) return real_write(fd, data, size);
    BEGIN;
    ssize_t done = real_write(fd, data, size);
    if (done > 0) record(WRITE, inode_of(fd), lseek64(fd, 0, SEEK_CUR) - done, 0, paths[fd], data, done);
    END(done);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (is_seen(fd)) fail("writev");
    return real_writev(fd, parts, count);
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    if (is_seen(to)) { errno = EINVAL; return -1; } /* the caller writes instead */
    return real_sendfile64(to, from, at, size);
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) __attribute__((alias("sendfile64")));
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags) {
    if (is_seen(to)) { errno = EINVAL; return -1; }
    return real_copy_file_range(from, a, to, b, size, flags);
}

int ftruncate64(int fd, off64_t size) {
    if (!is_seen(fd)) return real_ftruncate64(fd, size);
    BEGIN;
    int done = real_ftruncate64(fd, size);
    if (!done) record(TRUNCATE, inode_of(fd), size, 0, paths[fd], NULL, 0);
    END(done);
}
int ftruncate(int fd, off_t size) __attribute__((alias("ftruncate64")));
int truncate64(const char *path, off64_t size) {
    char buffer[PATH_MAX];
    if (below(AT_FDCWD, path, buffer)) fail("truncate");
    return real_truncate64(path, size);
}
int truncate(const char *path, off_t size) __attribute__((alias("truncate64")));
int fallocate64(int fd, int mode, off64_t at, off64_t size) {
    if (is_seen(fd)) { errno = EOPNOTSUPP; return -1; }
    return real_fallocate64(fd, mode, at, size);
}
int fallocate(int fd, int mode, off_t at, off_t size) __attribute__((alias("fallocate64")));
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    if (is_seen(fd)) return EOPNOTSUPP;
    return real_posix_fallocate64(fd, at, size);
}
int posix_fallocate(int fd, off_t at, off_t size) __attribute__((alias("posix_fallocate64")));

static int synced(int fd, int (*call)(int)) {
    if (!is_seen(fd)) return call(fd);
    BEGIN;
    int done = 0; /* the disk that is simulated takes it; the real one need not */
    record(kind[fd] == 2 ? SYNC_FOLDER : SYNC, inode_of(fd), 0, 0, paths[fd], NULL, 0);
    END(done);
}
int fsync(int fd) { return synced(fd, real_fsync); }
int fdatasync(int fd) { return synced(fd, real_fdatasync); }

int renameat(int from_at, const char *from, int to_at, const char *to) {
    BEGIN;
    const char *rest = below(from_at, from, buffer), *target = below(to_at, to, other);
    int done = real_renameat(from_at, from, to_at, to);
    if (!done && (rest || target)) {
        if (!rest || !target) fail("a rename into or out of the folder");
        record(RENAME, 0, 0, 0, rest, target, strlen(target));
    }
    END(done);
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    BEGIN;
    const char *rest = below(from_at, from, buffer), *target = below(to_at, to, other);
    int done = real_linkat(from_at, from, to_at, to, flags);
    if (!done && (rest || target)) {
        if (!rest || !target) fail("a link into or out of the folder");
        record(LINK, 0, 0, 0, rest, target, strlen(target));
    }
    END(done);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char *path, int flags) {
    BEGIN;
    const char *rest = below(at, path, buffer);
    int done = real_unlinkat(at, path, flags);
    if (!done && rest) record(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, 0, rest, NULL, 0);
    END(done);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int remove(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdir(const char *path, mode_t mode) {
    BEGIN;
    const char *rest = below(AT_FDCWD, path, buffer);
    int done = real_mkdir(path, mode);
    if (!done && rest) record(MKDIR, 0, 0, 0, rest, NULL, 0);
    END(done);
}

/* Called by what is recorded: what it says stands between the records. */
void powerloss_mark(const char *text) {
    if (out < 0) return;
    pthread_mutex_lock(&lock);
    record(MARK, 0, 0, 0, NULL, text, strlen(text));
    pthread_mutex_unlock(&lock);
}
