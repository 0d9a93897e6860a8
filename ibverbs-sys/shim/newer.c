/*
 * Verbs that are newer than the headers which the bindings were generated from. Older libraries do not have them, so they are
 * looked up when they are first called; where they are absent, these functions say that they are not supported.
 */
#include <dlfcn.h>
#include <errno.h>

#include "rs_shim.h"

struct ibv_buf;

/*
 * A library that is linked into the program itself is found by a weak reference: the linker exports from a program only what
 * some shared library of the link knows by name, and one as old as these headers does not know these names. With newer headers
 * comes a library that does.
 */
#ifdef RS_BUF_IS_NEWER
#define RS_LINKED __attribute__((weak))
extern void *linked_alloc_buf(struct ibv_pd *, size_t, struct ibv_buf **) __asm__("ibv_alloc_buf") RS_LINKED;
extern void linked_free_buf(struct ibv_buf *) __asm__("ibv_free_buf") RS_LINKED;
extern struct ibv_mr *linked_reg_buf_mr(struct ibv_pd *, struct ibv_buf *, void *, size_t, int) __asm__("ibv_reg_buf_mr") RS_LINKED;
#else
#define linked_alloc_buf NULL
#define linked_free_buf NULL
#define linked_reg_buf_mr NULL
#endif

/* Where a function was found; looked up once by whoever comes first, and others at the same time find the same. */
static char absent;

static void *look_up(void **place, void *linked, const char *name)
{
	void *found = __atomic_load_n(place, __ATOMIC_ACQUIRE);

	if (!found) {
		found = linked ? linked : dlsym(RTLD_DEFAULT, name);
		if (!found)
			found = &absent;
		__atomic_store_n(place, found, __ATOMIC_RELEASE);
	}
	return found == &absent ? NULL : found;
}

static void *alloc_buf, *free_buf, *reg_buf_mr;

#define LOOK_UP(name) look_up(&name, (void *)linked_##name, "ibv_" #name)

void *rs_ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf)
{
	void *(*alloc)(struct ibv_pd *, size_t, struct ibv_buf **) = LOOK_UP(alloc_buf);

	/* One without the others would be of no use. */
	if (!alloc || !LOOK_UP(free_buf) || !LOOK_UP(reg_buf_mr)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return alloc(pd, size, buf);
}

void rs_ibv_free_buf(struct ibv_buf *buf)
{
	void (*release)(struct ibv_buf *) = LOOK_UP(free_buf);

	if (release)
		release(buf);
}

struct ibv_mr *rs_ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length,
				 int access)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, struct ibv_buf *, void *, size_t, int) =
		LOOK_UP(reg_buf_mr);

	if (!reg) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return reg(pd, buf, addr, length, access);
}
