// A library for LD_PRELOAD that fixes the order in which the programs of uDAPL listen and connect on the TCP port
// SERVICE_PORT. By default, a client connects when the server listens. With CLIENT_REFUSED, the path of a file, a
// client first connects while nobody listens, and the server listens when the client has created this file.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef int connect_function(int, const struct sockaddr *, socklen_t);
typedef int listen_function(int, int);

static int is_service(const struct sockaddr *address) {
    const char *port = getenv("SERVICE_PORT");
    return port && address->sa_family == AF_INET && ntohs(((const struct sockaddr_in *)address)->sin_port) == atoi(port);
}

// Returns whether a server listens on the port. In the table of sockets, 0A stands for this state.
static int has_listener(void) {
    unsigned wanted = (unsigned)atoi(getenv("SERVICE_PORT")), port, state;
    FILE *table = fopen("/proc/net/tcp", "re");
    int found = 0;
    char line[256];
    while (table && fgets(line, sizeof line, table)) {
        found |= sscanf(line, "%*d: %*x:%x %*x:%*x %x", &port, &state) == 2 && port == wanted && state == 0x0A;
    }
    if (table) {
        fclose(table);
    }
    return found;
}

static int was_refused(void) {
    return access(getenv("CLIENT_REFUSED"), F_OK) == 0;
}

// Waits until a condition holds, at most a minute.
static void wait_until(int (*condition)(void)) {
    const struct timespec pause = {.tv_nsec = 5000000};
    for (int left = 12000; left > 0 && !condition(); left--) {
        nanosleep(&pause, NULL);
    }
}

int connect(int fd, const struct sockaddr *address, socklen_t length) {
    static int refused;
    const char *file = getenv("CLIENT_REFUSED");
    if (is_service(address)) {
        if (file && !refused) {
            refused = 1;
        } else {
            if (file) {
                close(creat(file, 0600));
            }
            wait_until(has_listener);
        }
    }
    connect_function *next = (connect_function *)dlsym(RTLD_NEXT, "connect");
    return next(fd, address, length);
}

int listen(int fd, int backlog) {
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    int is_known = getsockname(fd, (struct sockaddr *)&address, &length) == 0;
    if (getenv("CLIENT_REFUSED") && is_known && is_service((struct sockaddr *)&address)) {
        wait_until(was_refused);
    }
    listen_function *next = (listen_function *)dlsym(RTLD_NEXT, "listen");
    return next(fd, backlog);
}
