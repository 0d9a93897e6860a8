/*
 * Calls the shim with structs of the bindings' size, in front of a library that fills the header's: what the caller has
 * reaches the library, what the library says reaches the caller, and nothing else is touched. Built by tests/growth.rs
 * with headers of several ages.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "rs_shim.h"
#include "layout.h"

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

enum { CALLER = 0x11, LIBRARY = 0x5a, CANARY = 0xc3, MARGIN = 64 };

/* The prototypes of what is called here; the shim has no header. */
int rs_ibv_query_port(struct ibv_context *, uint8_t, struct ibv_port_attr *);
int rs_ibv_query_device_ex(struct ibv_context *, const struct ibv_query_device_ex_input *,
			   struct ibv_device_attr_ex *);
struct ibv_qp *rs_ibv_create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *);
int rs_ibv_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int);
int rs_ibv_query_ece(struct ibv_qp *, struct ibv_ece *);
ssize_t rs_ibv_query_gid_table(struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t);
struct ibv_buf;
void *rs_ibv_alloc_buf(struct ibv_pd *, size_t, struct ibv_buf **);
void rs_ibv_free_buf(struct ibv_buf *);
struct ibv_mr *rs_ibv_reg_buf_mr(struct ibv_pd *, struct ibv_buf *, void *, size_t, int);
int rs_rdma_join_multicast_ex(struct rdma_cm_id *, struct rdma_cm_join_mc_attr_ex *, void *);

static int all(const void *from, int byte, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (((const unsigned char *)from)[i] != byte)
			return 0;
	return 1;
}

/* How the library sees a struct: the caller's part as the caller left it, the rest zero. Then it fills all of it. */
static void library(void *attr, size_t bound, size_t header)
{
	size_t both = RS_MIN(bound, header);

	CHECK(all(attr, CALLER, both));
	CHECK(all((char *)attr + both, 0, header - both));
	memset(attr, LIBRARY, header);
}

/* A struct of the bindings' size, and what must not be touched after it. */
static unsigned char memory[4096];

static void *caller(size_t bound)
{
	memset(memory, CANARY, sizeof(memory));
	memset(memory, CALLER, bound);
	CHECK(bound + MARGIN <= sizeof(memory));
	return memory;
}

static void answered(size_t bound, size_t header)
{
	size_t both = RS_MIN(bound, header);

	CHECK(all(memory, LIBRARY, both));
	CHECK(all(memory + both, 0, bound - both));
	CHECK(all(memory + bound, CANARY, MARGIN));
}

#define LIBRARY_SEES(name, attr) library(attr, RS_SIZE_##name, sizeof(struct name))
#define CALLER_OF(name) caller(RS_SIZE_##name)
#define ANSWERED(name) answered(RS_SIZE_##name, sizeof(struct name))

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
		      size_t len)
{
	CHECK(len == sizeof(*attr));
	LIBRARY_SEES(ibv_port_attr, attr);
	return 0;
}

static int query_device_ex(struct ibv_context *context,
			   const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t len)
{
	CHECK(!input);
	CHECK(len == sizeof(*attr));
	LIBRARY_SEES(ibv_device_attr_ex, attr);
	return 0;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	LIBRARY_SEES(ibv_qp_init_attr_ex, attr);
	return NULL;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	LIBRARY_SEES(ibv_qp_attr, attr);
	return 0;
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	CHECK(!ece);
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
			     uint32_t flags, size_t entry_size)
{
	CHECK(entry_size == RS_SIZE_ibv_gid_entry);
	return max;
}

int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *arg)
{
	LIBRARY_SEES(rdma_cm_join_mc_attr_ex, attr);
	return 0;
}

/* What inline functions fall back to with a library that is too old for them. */
#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	abort();
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	abort();
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	abort();
}

int main(void)
{
	static struct verbs_context verbs = {
		.query_port = query_port,
		.query_device_ex = query_device_ex,
		.create_qp_ex = create_qp_ex,
		.sz = sizeof(verbs),
		.context.abi_compat = __VERBS_ABI_IS_EXTENDED,
	};
	struct ibv_context *context = &verbs.context;

	CHECK(!rs_ibv_query_port(context, 1, CALLER_OF(ibv_port_attr)));
	ANSWERED(ibv_port_attr);

	CHECK(!rs_ibv_query_device_ex(context, NULL, CALLER_OF(ibv_device_attr_ex)));
	ANSWERED(ibv_device_attr_ex);

	/* Every bit of its comp_mask is set, so the inline function goes to the driver's operation. */
	CHECK(!rs_ibv_create_qp_ex(context, CALLER_OF(ibv_qp_init_attr_ex)));
	ANSWERED(ibv_qp_init_attr_ex);

	CHECK(!rs_ibv_modify_qp(NULL, CALLER_OF(ibv_qp_attr), 0));
	ANSWERED(ibv_qp_attr);

	CHECK(!rs_rdma_join_multicast_ex(NULL, CALLER_OF(rdma_cm_join_mc_attr_ex), NULL));
	ANSWERED(rdma_cm_join_mc_attr_ex);

	CHECK(!rs_ibv_query_ece(NULL, NULL));
	CHECK(rs_ibv_query_gid_table(context, NULL, 7, 0) == 7);

	/* This library is older than these. */
	CHECK(!rs_ibv_alloc_buf(NULL, 4096, NULL) && errno == EOPNOTSUPP);
	errno = 0;
	CHECK(!rs_ibv_reg_buf_mr(NULL, NULL, NULL, 4096, 0) && errno == EOPNOTSUPP);
	rs_ibv_free_buf(NULL);
	return 0;
}
