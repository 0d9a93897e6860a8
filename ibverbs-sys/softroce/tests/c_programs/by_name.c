/*
 * Opens libibverbs by its name, as programs do that load it only if it is needed. Softroce has this name here, and must
 * have opened the real library, which is another file.
 */

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>

static void *library;

static void *find(const char *name)
{
	void *found = dlsym(library, name);
	if (!found)
		fprintf(stderr, "%s: %s\n", name, dlerror());
	return found;
}

/* Returns whether a file with this in its path is mapped. */
static int is_mapped(const char *part)
{
	char line[4096];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		found |= strstr(line, part) != NULL;
	if (maps)
		fclose(maps);
	return found;
}

int main(void)
{
	library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	struct ibv_device **(*get_list)(int *) = find("ibv_get_device_list");
	const char *(*name_of)(struct ibv_device *) = find("ibv_get_device_name");
	struct ibv_context *(*open_device)(struct ibv_device *) = find("ibv_open_device");
	int (*close_device)(struct ibv_context *) = find("ibv_close_device");
	void (*free_list)(struct ibv_device **) = find("ibv_free_device_list");
	const char *(*status_text)(enum ibv_wc_status) = find("ibv_wc_status_str");
	if (!get_list || !name_of || !open_device || !close_device || !free_list || !status_text)
		return 1;
	struct ibv_device **list = get_list(NULL);
	if (!list) {
		perror("ibv_get_device_list");
		return 1;
	}
	if (!is_mapped("/libsoftroce.so") || !is_mapped("/libibverbs.so")) {
		fprintf(stderr, "one of the libraries is not mapped\n");
		return 1;
	}
	for (int i = 0; list[i]; i++) {
		if (strcmp(name_of(list[i]), "softroce0"))
			continue;
		struct ibv_context *context = open_device(list[i]);
		if (!context) {
			perror("ibv_open_device");
			return 1;
		}
		if (close_device(context)) {
			perror("ibv_close_device");
			return 1;
		}
		printf("opened softroce0: %s\n", status_text(IBV_WC_SUCCESS));
		free_list(list);
		return 0;
	}
	fprintf(stderr, "softroce0 is not listed\n");
	return 1;
}
