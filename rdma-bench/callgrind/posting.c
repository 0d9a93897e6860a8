/*
 * One request after the other between two queue pairs of this process, posted and polled by one thread: what `posting.rs`
 * does over rdma-core, in C. `cargo xtask callgrind` counts the instructions of both.
 *
 *	posting send|write|read|atomic|idle COUNT
 *
 * `idle` polls an empty queue. The device is the one that RDMA_DEVICE names, or the first; its first port and first GID are used. As a program does whose
 * memory and ids change, it fills in each request when it posts it, and looks at each completion's status and id.
 *
 * Between posting and polling it rests, so that polls find something immediately. What that takes is not counted.
 */
#define _DEFAULT_SOURCE
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 1, GID_INDEX = 0, SIZE = 8, DEPTH = 16, REST_MICROSECONDS = 200 };

/* An end of the connection. */
struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	char *buffer;
	struct ibv_mr *mr;
	uint64_t next_id;
};

static void check(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static struct ibv_context *open_device(void)
{
	const char *wanted = getenv("RDMA_DEVICE");
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	check(list != NULL, "ibv_get_device_list");
	for (struct ibv_device **device = list; *device && !context; device++)
		if (!wanted || !strcmp(ibv_get_device_name(*device), wanted))
			context = ibv_open_device(*device);
	check(context != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	return context;
}

static void set_up(struct end *end, struct ibv_pd *pd)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	};

	end->cq = ibv_create_cq(pd->context, 2 * DEPTH, NULL, NULL, 0);
	check(end->cq != NULL, "ibv_create_cq");
	init.send_cq = end->cq;
	init.recv_cq = end->cq;
	end->qp = ibv_create_qp(pd, &init);
	check(end->qp != NULL, "ibv_create_qp");
	check(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	end->buffer = calloc(1, SIZE);
	check(end->buffer != NULL, "calloc");
	end->mr = ibv_reg_mr(pd, end->buffer, SIZE,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
			     IBV_ACCESS_REMOTE_ATOMIC);
	check(end->mr != NULL, "ibv_reg_mr");
	end->next_id = 0;
}

static void connect_to(struct end *end, const struct end *peer)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = PORT, .grh = { .sgid_index = GID_INDEX, .hop_limit = 64 } },
	};

	check(!ibv_query_port(end->qp->context, PORT, &port), "ibv_query_port");
	check(!ibv_query_gid(end->qp->context, PORT, GID_INDEX, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	attr.path_mtu = port.active_mtu;
	check(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	check(!ibv_modify_qp(end->qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static uint64_t post_receive(struct end *end)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end->buffer, .length = SIZE, .lkey = end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = end->next_id++, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	check(!ibv_post_recv(end->qp, &wr, &bad), "ibv_post_recv");
	return wr.wr_id;
}

static uint64_t post_send(struct end *end, enum ibv_wr_opcode opcode, const struct ibv_mr *remote)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end->buffer, .length = SIZE, .lkey = end->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = end->next_id++,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr *bad;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote->addr;
		wr.wr.atomic.rkey = remote->rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (opcode != IBV_WR_SEND) {
		wr.wr.rdma.remote_addr = (uintptr_t)remote->addr;
		wr.wr.rdma.rkey = remote->rkey;
	}
	check(!ibv_post_send(end->qp, &wr, &bad), "ibv_post_send");
	return wr.wr_id;
}

/* Lets the device's own thread carry out what was posted. */
static __attribute__((noinline)) void rest(void)
{
	usleep(REST_MICROSECONDS);
}

static void complete(struct end *end, uint64_t id)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(end->cq, 1, &wc)) == 0)
		rest();
	check(count == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == id, "ibv_poll_cq");
}

static void poll_in_vain(struct end *end, long count)
{
	struct ibv_wc wc;

	for (long i = 0; i < count; i++)
		check(ibv_poll_cq(end->cq, 1, &wc) == 0, "ibv_poll_cq");
}

static enum ibv_wr_opcode opcode_of(const char *operation)
{
	if (!strcmp(operation, "send") || !strcmp(operation, "idle"))
		return IBV_WR_SEND;
	if (!strcmp(operation, "write"))
		return IBV_WR_RDMA_WRITE;
	if (!strcmp(operation, "read"))
		return IBV_WR_RDMA_READ;
	if (!strcmp(operation, "atomic"))
		return IBV_WR_ATOMIC_FETCH_AND_ADD;
	fprintf(stderr, "no operation %s\n", operation);
	exit(2);
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct end one, other;
	enum ibv_wr_opcode opcode;
	long count;

	if (argc != 3) {
		fprintf(stderr, "usage: %s send|write|read|atomic|idle COUNT\n", argv[0]);
		return 2;
	}
	opcode = opcode_of(argv[1]);
	count = atol(argv[2]);
	context = open_device();
	pd = ibv_alloc_pd(context);
	check(pd != NULL, "ibv_alloc_pd");
	set_up(&one, pd);
	set_up(&other, pd);
	connect_to(&one, &other);
	connect_to(&other, &one);

	if (!strcmp(argv[1], "idle")) {
		poll_in_vain(&one, count);
		count = 0;
	}
	for (long i = 0; i < count; i++) {
		uint64_t received = 0, sent;

		if (opcode == IBV_WR_SEND)
			received = post_receive(&other);
		sent = post_send(&one, opcode, other.mr);
		rest();
		complete(&one, sent);
		if (opcode == IBV_WR_SEND)
			complete(&other, received);
	}

	ibv_destroy_qp(one.qp);
	ibv_destroy_qp(other.qp);
	ibv_destroy_cq(one.cq);
	ibv_destroy_cq(other.cq);
	ibv_dereg_mr(one.mr);
	ibv_dereg_mr(other.mr);
	free(one.buffer);
	free(other.buffer);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
