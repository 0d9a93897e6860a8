/*
 * What the generated shim (verbs.c, rdmacm.c) and the hand-written part of it (by_hand.c) share.
 *
 * A struct that grows between releases has one size in the bindings, RS_SIZE_<name> of layout.h, and another in the
 * installed header. The library reads and writes the header's; the caller owns no more than the bindings' size. So the
 * shim hands the library a local of the header's type: what the caller has is copied in and the rest is zero; what comes
 * back is copied out up to the caller's size, and what the header does not know of is zero.
 */
#ifndef RS_SHIM_H
#define RS_SHIM_H

#include <stddef.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <infiniband/ib.h>
#include <infiniband/opcode.h>
#include <infiniband/sa.h>
#include <infiniband/tm_types.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

#define RS_MIN(a, b) ((a) < (b) ? (a) : (b))

/* Declares the local for the argument `arg`, a pointer to `struct name` that may be NULL, and fills it. */
#define RS_LOAD(name, arg)                                                                         \
	struct name local_##arg;                                                                   \
	memset(&local_##arg, 0, sizeof(local_##arg));                                              \
	if (arg)                                                                                   \
		memcpy(&local_##arg, arg, RS_MIN(RS_SIZE_##name, sizeof(local_##arg)))

/* What the library gets in place of `arg`. */
#define RS_LOCAL(arg) ((arg) ? &local_##arg : NULL)

/* Gives the caller what the library left in the local. */
#define RS_STORE(name, arg)                                                                        \
	do {                                                                                       \
		if (arg) {                                                                         \
			size_t both = RS_MIN(RS_SIZE_##name, sizeof(local_##arg));                 \
			memcpy(arg, &local_##arg, both);                                           \
			memset((char *)(arg) + both, 0, RS_SIZE_##name - both);                    \
		}                                                                                  \
	} while (0)

#endif
