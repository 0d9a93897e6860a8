/*
 * Memory that the device hands out for regions, as a C program on an old library sees it: the three functions are no
 * symbols that it could be linked with, and ibverbs-sys's shim looks them up in what is preloaded.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

struct ibv_buf;
void *rs_ibv_alloc_buf(struct ibv_pd *, size_t, struct ibv_buf **);
void rs_ibv_free_buf(struct ibv_buf *);
struct ibv_mr *rs_ibv_reg_buf_mr(struct ibv_pd *, struct ibv_buf *, void *, size_t, int);

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__,            \
				#condition, strerror(errno));                                      \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

enum { SIZE = 1 << 20, PART = 100000, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

static struct ibv_context *open_device(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context;

	CHECK(list && count > 0);
	CHECK(!strcmp(ibv_get_device_name(list[count - 1]), "softroce0"));
	context = ibv_open_device(list[count - 1]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

/* A queue pair that is connected to itself. */
static struct ibv_qp *loop(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ACCESS,
	};

	CHECK(qp);
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	CHECK(!ibv_query_gid(pd->context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				     IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	return qp;
}

static void write_and_wait(struct ibv_qp *qp, struct ibv_mr *from, struct ibv_mr *to)
{
	struct ibv_sge sge = { (uintptr_t)from->addr, PART, from->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)to->addr, to->rkey },
	};
	struct ibv_wc wc;
	int count;

	CHECK(!ibv_post_send(qp, &wr, &bad));
	do
		count = ibv_poll_cq(qp->send_cq, 1, &wc);
	while (!count);
	CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp *qp = loop(pd, cq);
	struct ibv_buf *buf, *none = NULL;
	unsigned char *memory = rs_ibv_alloc_buf(pd, SIZE, &buf);
	struct ibv_mr *from, *to;

	CHECK(memory && (uintptr_t)memory % 4096 == 0);
	for (int i = 0; i < SIZE; i++)
		CHECK(!memory[i]);
	for (int i = 0; i < PART; i++)
		memory[i] = i % 251;

	from = rs_ibv_reg_buf_mr(pd, buf, memory, PART, IBV_ACCESS_LOCAL_WRITE);
	to = rs_ibv_reg_buf_mr(pd, buf, memory + SIZE - PART, PART, ACCESS);
	CHECK(from && to && from->lkey != to->lkey);
	errno = 0;
	CHECK(!rs_ibv_reg_buf_mr(pd, buf, memory + SIZE - PART, PART + 1, ACCESS) && errno == EINVAL);
	errno = 0;
	CHECK(!rs_ibv_alloc_buf(pd, SIZE_MAX, &none) && errno == ENOMEM && !none);

	write_and_wait(qp, from, to);
	CHECK(!memcmp(memory, memory + SIZE - PART, PART));

	/* Freed while it is registered, and again: it serves the regions as before. */
	rs_ibv_free_buf(buf);
	rs_ibv_free_buf(buf);
	memory[0] = 77;
	write_and_wait(qp, from, to);
	CHECK(memory[SIZE - PART] == 77);
	errno = 0;
	CHECK(!rs_ibv_reg_buf_mr(pd, buf, memory, PART, ACCESS) && errno == EINVAL);

	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_dereg_mr(from));
	CHECK(!ibv_dereg_mr(to));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	puts("buffers serve");
	return 0;
}
