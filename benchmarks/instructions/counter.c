/* A plugin of qemu-user (7.2 or 8) that counts the instructions of a program into a file, which the program can read
   while it runs.

   qemu-x86_64 -plugin counter.so,counter=FILE PROGRAM...

   FILE has at least 8 bytes; its first 8 are the count, an unsigned number in the machine's own byte order.  qemu counts a
   block of code when it begins, so a count is exact except for the block that reads it.  Threads share the count and may
   lose a part of it, so count one thread at a time.

   Debian does not package qemu-plugin.h, so the declarations that we use are here. */

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define ADD_U64 0
#define PARAMETER "counter="

typedef uint64_t plugin_id;
struct block;
struct info;

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
size_t qemu_plugin_tb_n_insns(const struct block *);
void qemu_plugin_register_vcpu_tb_exec_inline(struct block *, int, void *, uint64_t);

EXPORT int qemu_plugin_version = 1;

static uint64_t *count;

static void translated(plugin_id id, struct block *block)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, count, qemu_plugin_tb_n_insns(block));
}

EXPORT int qemu_plugin_install(plugin_id id, const struct info *info, int argc, char **argv)
{
    (void)info;
    if (argc != 1 || strncmp(argv[0], PARAMETER, strlen(PARAMETER)))
        return -1;
    int file = open(argv[0] + strlen(PARAMETER), O_RDWR | O_CLOEXEC);
    if (file < 0)
        return -1;
    count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (count == MAP_FAILED)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
