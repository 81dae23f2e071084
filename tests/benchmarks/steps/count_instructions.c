/* A plugin of QEMU that counts the instructions of a guest.
 *
 * The guest marks a place in its run with the system call getpriority(777, PLACE), which fails and changes
 * nothing. The plugin then prints "MARK PLACE COUNT". COUNT is the number of instructions so far.
 *
 * The declarations are those of version 1 of QEMU's plugin interface. Debian has no package with its header.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))
#define GETPRIORITY 141 /* on aarch64 */
#define MARK 777        /* no kind of priority */

typedef uint64_t qemu_plugin_id_t;
struct qemu_info;
struct qemu_plugin_tb;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
typedef void (*translated_block)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*system_call)(qemu_plugin_id_t, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                            uint64_t, uint64_t, uint64_t, uint64_t);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, translated_block);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, enum qemu_plugin_op, void *, uint64_t);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, system_call);

EXPORT int qemu_plugin_version = 1;
static uint64_t count;

static void count_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, &count,
                                             qemu_plugin_tb_n_insns(block));
}

static void print_mark(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t which, uint64_t place,
                       uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
    (void)id, (void)cpu, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
    if (number == GETPRIORITY && which == MARK)
        fprintf(stderr, "MARK %llu %llu\n", (unsigned long long)place, (unsigned long long)count);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv)
{
    (void)info, (void)argc, (void)argv;
    if (argc)
        return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, count_block);
    qemu_plugin_register_vcpu_syscall_cb(id, print_mark);
    return 0;
}
