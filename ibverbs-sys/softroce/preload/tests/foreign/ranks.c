// An MPI program that sends, reduces and counts, and checks all data. Rank 0 prints a line for each part
// that was right.

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void check(int condition, const char *what, long at) {
    if (!condition) {
        fprintf(stderr, "rank %d: %s is wrong at %ld\n", rank, what, at);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void done(const char *what) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%s: right\n", what);
    }
}

// The byte of a message in a round, at an offset.
static uint8_t expected(int sender, int round, size_t at) {
    return (uint8_t)(sender * 101 + round * 17 + at * 7 + (at >> 8));
}

static void fill(uint8_t *bytes, size_t length, int round) {
    for (size_t at = 0; at < length; at++) {
        bytes[at] = expected(rank, round, at);
    }
}

static void check_bytes(const uint8_t *bytes, size_t length, int sender, int round) {
    for (size_t at = 0; at < length; at++) {
        check(bytes[at] == expected(sender, round, at), "a message", (long)at);
    }
}

// Each pair of neighbours sends messages of several lengths to and fro.
static void ping_pong(void) {
    static const size_t lengths[] = {0, 8, 4096, 65536, 1 << 20};
    uint8_t *out = malloc(1 << 20), *in = malloc(1 << 20);
    int peer = rank ^ 1;
    for (size_t kind = 0; kind < sizeof lengths / sizeof *lengths; kind++) {
        size_t length = lengths[kind];
        for (int round = 0; round < 10; round++) {
            fill(out, length, round);
            memset(in, 0, length);
            if (rank < peer) {
                MPI_Send(out, (int)length, MPI_BYTE, peer, round, MPI_COMM_WORLD);
            }
            MPI_Status status;
            MPI_Recv(in, 1 << 20, MPI_BYTE, peer, round, MPI_COMM_WORLD, &status);
            int count;
            MPI_Get_count(&status, MPI_BYTE, &count);
            check(count == (int)length, "the length of a message", count);
            check_bytes(in, length, peer, round);
            if (rank > peer) {
                MPI_Send(out, (int)length, MPI_BYTE, peer, round, MPI_COMM_WORLD);
            }
        }
    }
    free(out);
    free(in);
    done("ping-pong");
}

static void all_reduce(void) {
    static const int counts[] = {1, 1000, 100000};
    for (size_t kind = 0; kind < sizeof counts / sizeof *counts; kind++) {
        int count = counts[kind];
        int64_t *out = malloc(sizeof *out * (size_t)count), *in = malloc(sizeof *in * (size_t)count);
        for (int at = 0; at < count; at++) {
            out[at] = (int64_t)(rank + 1) * (at + 3);
        }
        MPI_Allreduce(out, in, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        int64_t sum = (int64_t)ranks * (ranks + 1) / 2;
        for (int at = 0; at < count; at++) {
            check(in[at] == sum * (at + 3), "a sum", at);
        }
        free(out);
        free(in);
    }
    done("all-reduce");
}

static int by_value(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

// All ranks count in the memory of rank 0. Each value is seen by one rank, once.
static void fetch_and_add(void) {
    enum { TIMES = 50 };
    int64_t *counter;
    MPI_Win window;
    MPI_Win_allocate(sizeof *counter, sizeof *counter, MPI_INFO_NULL, MPI_COMM_WORLD, &counter, &window);
    MPI_Win_lock_all(0, window);
    *counter = 0;
    MPI_Win_sync(window);
    MPI_Barrier(MPI_COMM_WORLD);
    const int64_t one = 1;
    int64_t seen[TIMES];
    for (int time = 0; time < TIMES; time++) {
        MPI_Fetch_and_op(&one, &seen[time], MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_unlock_all(window);
    int total = TIMES * ranks;
    int64_t *all = malloc(sizeof *all * (size_t)total);
    MPI_Gather(seen, TIMES, MPI_INT64_T, all, TIMES, MPI_INT64_T, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(all, (size_t)total, sizeof *all, by_value);
        for (int at = 0; at < total; at++) {
            check(all[at] == at, "a counted value", at);
        }
        check(*counter == total, "the counter", *counter);
    }
    free(all);
    MPI_Win_free(&window);
    done("fetch-and-add");
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check(ranks % 2 == 0, "the number of ranks", ranks);
    ping_pong();
    all_reduce();
    fetch_and_add();
    MPI_Finalize();
    return 0;
}
