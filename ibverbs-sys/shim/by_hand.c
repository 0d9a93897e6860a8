/*
 * The functions whose shim cannot be made from their prototype alone.
 */
#include <fcntl.h>
#include <stdarg.h>

#include "rs_shim.h"
#include "layout.h"

/* An array, so no local can stand in; but the library is told how large the caller's entries are. */
ssize_t rs_ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
			       size_t max_entries, uint32_t flags)
{
	return _ibv_query_gid_table(context, entries, max_entries, flags, RS_SIZE_ibv_gid_entry);
}

/* Variadic: F_SETFL is the one command that takes an argument. */
int rs_rfcntl(int socket, int cmd, ...)
{
	va_list args;
	int flags;

	if (cmd != F_SETFL)
		return rfcntl(socket, cmd);

	va_start(args, cmd);
	flags = va_arg(args, int);
	va_end(args);
	return rfcntl(socket, cmd, flags);
}
