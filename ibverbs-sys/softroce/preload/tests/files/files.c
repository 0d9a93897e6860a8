// Asks all functions that libsoftroce.so answers about the device, and checks that the answers are consistent
// with each other and with the verbs. With an argument, asks one question and waits.

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define NODE "/dev/infiniband/softroce0"
#define DEVICE "/sys/class/infiniband/softroce0"
#define PLACE "/sys/devices/virtual/infiniband/softroce0"
#define VERBS "/sys/class/infiniband_verbs/softroce0"

static const char *part = "the start";

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s, line %d: %s (errno %d)\n", part, __LINE__, #condition, errno); \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

#define CHECK_FAILS(call, number) \
    do {                          \
        errno = 0;                \
        CHECK((call) == -1);      \
        CHECK(errno == (number)); \
    } while (0)

// Reads a file by a descriptor, without the newline.
static char *read_all(int fd) {
    static char text[256];
    ssize_t length = read(fd, text, sizeof text - 1);
    CHECK(length >= 0);
    close(fd);
    if (length > 0 && text[length - 1] == '\n') {
        length--;
    }
    text[length] = 0;
    return text;
}

static char *text_of(const char *path) {
    errno = 1234;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK(errno == 1234);
    return read_all(fd);
}

// The functions of programs that were built for C libraries before glibc 2.33.
typedef int xstat_function(int, const char *, struct stat *);
typedef int fxstatat_function(int, int, const char *, struct stat *, int);

static mode_t kind_of(const char *path) {
    struct stat status, other;
    struct stat64 large;
    struct statx extended;
    errno = 1234;
    CHECK(stat(path, &status) == 0);
    CHECK(errno == 1234);
    CHECK(stat64(path, &large) == 0 && large.st_ino == status.st_ino && large.st_mode == status.st_mode);
    CHECK(fstatat(AT_FDCWD, path, &other, 0) == 0 && other.st_ino == status.st_ino);
    CHECK(fstatat64(-1, path, &large, 0) == 0 && large.st_ino == status.st_ino);
    CHECK(statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &extended) == 0);
    CHECK(extended.stx_ino == status.st_ino && extended.stx_mode == status.st_mode);
    static const char *const old[] = {"__xstat", "__xstat64"};
    for (size_t at = 0; at < sizeof old / sizeof *old; at++) {
        xstat_function *function = (xstat_function *)dlsym(RTLD_DEFAULT, old[at]);
        CHECK(function != NULL && function(1, path, &other) == 0 && other.st_ino == status.st_ino);
    }
    static const char *const relative[] = {"__fxstatat", "__fxstatat64"};
    for (size_t at = 0; at < sizeof relative / sizeof *relative; at++) {
        fxstatat_function *function = (fxstatat_function *)dlsym(RTLD_DEFAULT, relative[at]);
        CHECK(function != NULL && function(1, AT_FDCWD, path, &other, 0) == 0 && other.st_ino == status.st_ino);
    }
    return status.st_mode & S_IFMT;
}

static void the_node_is_a_character_device(void) {
    part = __func__;
    struct stat status;
    CHECK(kind_of(NODE) == S_IFCHR);
    CHECK(lstat(NODE, &status) == 0 && S_ISCHR(status.st_mode));
    CHECK(access(NODE, R_OK | W_OK) == 0 && faccessat(AT_FDCWD, NODE, R_OK | W_OK, 0) == 0);
    CHECK(euidaccess(NODE, R_OK | W_OK) == 0 && eaccess(NODE, R_OK | W_OK) == 0);
    int fd = open(NODE, O_RDWR | O_CLOEXEC);
    struct stat opened;
    CHECK(fd >= 0 && fstat(fd, &opened) == 0 && opened.st_rdev == status.st_rdev);
    close(fd);
    char number[32];
    snprintf(number, sizeof number, "%d:%d", (int)(status.st_rdev >> 8), (int)(status.st_rdev & 0xff));
    CHECK(strcmp(text_of(VERBS "/dev"), number) == 0);
    CHECK(strcmp(text_of(VERBS "/ibdev"), "softroce0") == 0);
}

static void directories_and_files_have_their_kinds(void) {
    part = __func__;
    struct stat status;
    CHECK(kind_of("/sys/devices/virtual/infiniband") == S_IFDIR);
    CHECK(getxattr(DEVICE, "user.none", NULL, 0) == -1 && errno != ENOENT);
    CHECK(listxattr(DEVICE "/node_guid", NULL, 0) >= 0 && llistxattr(DEVICE, NULL, 0) >= 0);
    CHECK(kind_of("/sys/class/infiniband") == S_IFDIR && kind_of("/dev/infiniband") == S_IFDIR);
    CHECK(kind_of(DEVICE) == S_IFDIR && kind_of(DEVICE "/ports/1/gids") == S_IFDIR);
    CHECK(kind_of(DEVICE "/node_guid") == S_IFREG && kind_of(DEVICE "/./ports//1/state") == S_IFREG);
    CHECK(lstat(DEVICE, &status) == 0 && S_ISLNK(status.st_mode));
    struct stat64 large;
    CHECK(lstat64(DEVICE, &large) == 0 && S_ISLNK(large.st_mode) && large.st_ino == status.st_ino);
    CHECK(fstatat(AT_FDCWD, DEVICE, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode));
    static const char *const old[] = {"__lxstat", "__lxstat64"};
    for (size_t at = 0; at < sizeof old / sizeof *old; at++) {
        xstat_function *function = (xstat_function *)dlsym(RTLD_DEFAULT, old[at]);
        CHECK(function != NULL && function(1, DEVICE, &status) == 0 && S_ISLNK(status.st_mode));
    }
    CHECK(access(DEVICE "/node_guid", R_OK) == 0);
    CHECK_FAILS(access(DEVICE "/none", F_OK), ENOENT);
    CHECK_FAILS(stat(DEVICE "/ports/2", &status), ENOENT);
    CHECK_FAILS(open(DEVICE "/node_guid/more", O_RDONLY), ENOTDIR);
}

static void links_lead_to_the_place_of_the_device(void) {
    part = __func__;
    char target[PATH_MAX], *path;
    ssize_t length = readlink(DEVICE, target, sizeof target);
    CHECK(length > 0);
    target[length] = 0;
    CHECK(strcmp(target, "../../devices/virtual/infiniband/softroce0") == 0);
    CHECK(readlinkat(AT_FDCWD, DEVICE, target, sizeof target) == length);
    CHECK(realpath(DEVICE, target) == target && strcmp(target, PLACE) == 0);
    path = realpath(DEVICE "/subsystem/softroce0/node_guid", NULL);
    CHECK(path != NULL && strcmp(path, PLACE "/node_guid") == 0);
    free(path);
    path = canonicalize_file_name(NODE);
    CHECK(path != NULL && strcmp(path, NODE) == 0);
    free(path);
    CHECK(realpath(DEVICE "/none", NULL) == NULL && errno == ENOENT);
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static void directories_list_the_device(void) {
    part = __func__;
    static const char *const classes[] = {"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/dev/infiniband"};
    for (int at = 0; at < 3; at++) {
        DIR *directory = opendir(classes[at]);
        CHECK(directory != NULL);
        int found = 0;
        for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
            found += strcmp(entry->d_name, "softroce0") == 0;
        }
        CHECK(found == 1);
        // A name of the listing leads to the same file.
        struct stat below, status;
        CHECK(fstatat(dirfd(directory), "softroce0", &below, 0) == 0);
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/softroce0", classes[at]);
        CHECK(stat(path, &status) == 0 && below.st_ino == status.st_ino);
        closedir(directory);

        struct dirent **entries;
        int count = scandir(classes[at], &entries, is_visible, alphasort);
        CHECK(count >= 1);
        found = 0;
        for (int entry = 0; entry < count; entry++) {
            found += strcmp(entries[entry]->d_name, "softroce0") == 0;
            free(entries[entry]);
        }
        free(entries);
        CHECK(found == 1);

        struct dirent64 **large;
        count = scandir64(classes[at], &large, NULL, NULL);
        CHECK(count >= 3);
        found = 0;
        for (int entry = 0; entry < count; entry++) {
            found += strcmp(large[entry]->d_name, "softroce0") == 0;
            free(large[entry]);
        }
        free(large);
        CHECK(found == 1);
    }
    struct dirent **entries;
    CHECK(scandir(DEVICE "/ports/1/gids", &entries, is_visible, NULL) == 128);
    CHECK(opendir(DEVICE "/none") == NULL && errno == ENOENT);
}

static void relative_paths_have_the_same_answers(void) {
    part = __func__;
    char expected[256];
    strcpy(expected, text_of(DEVICE "/node_guid"));
    int root = open("/", O_RDONLY | O_DIRECTORY);
    CHECK(strcmp(read_all(openat(root, "sys/class/infiniband/softroce0/node_guid", O_RDONLY)), expected) == 0);
    int directory = openat(root, "sys/class/infiniband", O_RDONLY | O_DIRECTORY);
    CHECK(directory >= 0);
    CHECK(strcmp(read_all(openat(directory, "softroce0/node_guid", O_RDONLY)), expected) == 0);
    CHECK(strcmp(read_all(openat64(root, "sys/class/infiniband/softroce0/node_guid", O_RDONLY)), expected) == 0);
    CHECK(strcmp(read_all(open64(DEVICE "/node_guid", O_RDONLY)), expected) == 0);
    CHECK(faccessat(directory, "softroce0/ports/1", F_OK, 0) == 0);
    close(directory);
    close(root);
    CHECK(chdir("/sys/class") == 0);
    CHECK(strcmp(text_of("infiniband/softroce0/node_guid"), expected) == 0);
    CHECK(chdir("/") == 0);
}

static void streams_are_opened(void) {
    part = __func__;
    char line[64];
    FILE *stream = fopen(DEVICE "/node_type", "r");
    CHECK(stream != NULL && fgets(line, sizeof line, stream) != NULL && strcmp(line, "1: CA\n") == 0);
    fclose(stream);
    stream = fopen64(DEVICE "/ports/1/link_layer", "re");
    CHECK(stream != NULL && fgets(line, sizeof line, stream) != NULL && strcmp(line, "Ethernet\n") == 0);
    fclose(stream);
}

static void other_paths_are_the_c_librarys(void) {
    part = __func__;
    struct stat status;
    errno = 1234;
    CHECK(stat("/", &status) == 0 && S_ISDIR(status.st_mode) && errno == 1234);
    CHECK_FAILS(stat(NULL, &status), EFAULT);
    CHECK_FAILS(open(NULL, O_RDONLY), EFAULT);
    CHECK_FAILS(open("", O_RDONLY), ENOENT);
    CHECK_FAILS(access("/sys/class/infiniband/softroce", F_OK), ENOENT);
    CHECK_FAILS(access("/sys/class/infiniband/softroce00", F_OK), ENOENT);
    CHECK_FAILS(access("/sys/class/infiniband_cm/softroce0", F_OK), ENOENT);
    CHECK_FAILS(access("/dev/infiniband/softroce", F_OK), ENOENT);
    // The third argument is passed on.
    char path[] = "/tmp/softroce-infiniband-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0 && unlink(path) == 0);
    fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0640);
    CHECK(fd >= 0 && fstat(fd, &status) == 0 && (status.st_mode & 0777) == 0640);
    CHECK(close(fd) == 0 && unlink(path) == 0);
    DIR *directory = opendir("/proc/self");
    CHECK(directory != NULL && closedir(directory) == 0);
}

static void write_gid(char *text, const union ibv_gid *gid) {
    for (int at = 0; at < 16; at += 2) {
        text += sprintf(text, "%s%02x%02x", at ? ":" : "", gid->raw[at], gid->raw[at + 1]);
    }
}

static struct ibv_context *open_device(void) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list != NULL);
    for (int at = 0; at < count; at++) {
        if (strcmp(ibv_get_device_name(list[at]), "softroce0") == 0) {
            char path[PATH_MAX];
            CHECK(strcmp(list[at]->ibdev_path, DEVICE) == 0 && strcmp(list[at]->dev_path, VERBS) == 0);
            snprintf(path, sizeof path, "/dev/infiniband/%s", list[at]->dev_name);
            CHECK(access(path, R_OK | W_OK) == 0);
            struct ibv_context *context = ibv_open_device(list[at]);
            CHECK(context != NULL);
            ibv_free_device_list(list);
            return context;
        }
    }
    CHECK(!"the device is listed");
    return NULL;
}

static void files_agree_with_the_verbs(struct ibv_context *context) {
    part = __func__;
    char path[PATH_MAX], text[64];
    uint64_t guid = be64toh(ibv_get_device_guid(context->device));
    snprintf(text, sizeof text, "%04x:%04x:%04x:%04x", (unsigned)(guid >> 48), (unsigned)(guid >> 32) & 0xffff,
             (unsigned)(guid >> 16) & 0xffff, (unsigned)guid & 0xffff);
    CHECK(strcmp(text_of(DEVICE "/node_guid"), text) == 0);
    CHECK(strcmp(text_of(DEVICE "/sys_image_guid"), text) == 0);

    struct ibv_device_attr device;
    CHECK(ibv_query_device(context, &device) == 0);
    CHECK(strcmp(text_of(DEVICE "/fw_ver"), device.fw_ver) == 0);

    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    snprintf(text, sizeof text, "%d: %s", port.state, port.state == IBV_PORT_ACTIVE ? "ACTIVE" : "DOWN");
    CHECK(strcmp(text_of(DEVICE "/ports/1/state"), text) == 0);
    CHECK(strtoul(text_of(DEVICE "/ports/1/phys_state"), NULL, 10) == port.phys_state);
    CHECK(strtoul(text_of(DEVICE "/ports/1/cap_mask"), NULL, 16) == port.port_cap_flags);
    CHECK(strtoul(text_of(DEVICE "/ports/1/lid"), NULL, 16) == port.lid);
    for (int index = 0; index < port.gid_tbl_len; index++) {
        union ibv_gid gid;
        CHECK(ibv_query_gid(context, 1, index, &gid) == 0);
        write_gid(text, &gid);
        snprintf(path, sizeof path, DEVICE "/ports/1/gids/%d", index);
        CHECK(strcmp(text_of(path), text) == 0);
        struct ibv_gid_entry entry;
        int is_empty = ibv_query_gid_ex(context, 1, index, &entry, 0) != 0;
        snprintf(path, sizeof path, DEVICE "/ports/1/gid_attrs/types/%d", index);
        CHECK(strcmp(text_of(path), is_empty ? "" : "RoCE v2") == 0);
        CHECK(index > 0 || !is_empty);
        snprintf(path, sizeof path, DEVICE "/ports/1/gid_attrs/ndevs/%d", index);
        CHECK(is_empty || entry.ndev_ifindex == 0 || strlen(text_of(path)) > 0);
    }
    CHECK(strcmp(text_of(DEVICE "/ports/1/pkeys/0"), "0xffff") == 0);
    CHECK(strtoul(text_of(DEVICE "/ports/1/counters/port_xmit_packets"), NULL, 10) == 0);
    CHECK(strcmp(text_of(DEVICE "/ports/1/gid_attrs/ndevs/0"), "lo") == 0);
}

// A child has a device of its own, which is not open.
static void a_child_has_answers_of_its_own(void) {
    part = __func__;
    char before[64];
    strcpy(before, text_of(DEVICE "/ports/1/gids/0"));
    pid_t child = fork();
    if (child == 0) {
        CHECK(strcmp(text_of(DEVICE "/ports/1/state"), "1: DOWN") == 0);
        struct ibv_context *context = open_device();
        CHECK(strcmp(text_of(DEVICE "/ports/1/gids/0"), before) != 0);
        files_agree_with_the_verbs(context);
        exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(strcmp(text_of(DEVICE "/ports/1/gids/0"), before) == 0);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        CHECK(access(DEVICE "/node_guid", F_OK) == 0);
        puts("asked");
        fflush(stdout);
        pause();
    }
    CHECK(strcmp(text_of(DEVICE "/ports/1/state"), "1: DOWN") == 0);
    the_node_is_a_character_device();
    directories_and_files_have_their_kinds();
    links_lead_to_the_place_of_the_device();
    directories_list_the_device();
    relative_paths_have_the_same_answers();
    streams_are_opened();
    other_paths_are_the_c_librarys();
    struct ibv_context *context = open_device();
    files_agree_with_the_verbs(context);
    a_child_has_answers_of_its_own();
    CHECK(ibv_close_device(context) == 0);
    puts("all answers are right");
    return 0;
}
