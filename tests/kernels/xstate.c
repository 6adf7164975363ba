// Lets an old User-Mode Linux run on a CPU with AMX, whose XSAVE area is larger than UML's buffer.
//
// UML reads as much of the area as fits and writes that back, which Linux refuses: NT_X86_XSTATE has to be complete.
#define _GNU_SOURCE
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static long complete(pid_t pid, void *address, struct iovec *beginning) {
  static _Thread_local char area[65536] __attribute__((aligned(64)));
  struct iovec whole = {area, sizeof area};
  if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &whole) < 0) return -1;
  if (beginning->iov_len >= whole.iov_len) whole = *beginning;
  else memcpy(area, beginning->iov_base, beginning->iov_len);
  return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, address, &whole);
}

long ptrace(enum __ptrace_request request, ...) {
  va_list list;
  va_start(list, request);
  pid_t pid = va_arg(list, pid_t);
  void *address = va_arg(list, void *), *data = va_arg(list, void *);
  va_end(list);
  if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE) return complete(pid, address, data);
  if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
    long word;  // libc returns it, the kernel stores it
    long result = syscall(SYS_ptrace, request, pid, address, &word);
    return result < 0 ? result : word;
  }
  return syscall(SYS_ptrace, request, pid, address, data);
}
