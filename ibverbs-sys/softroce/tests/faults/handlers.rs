//! Handlers of SIGSEGV and SIGBUS of the program, and programs without handlers: all work as they
//! do without the device.

use std::io;
use std::mem::zeroed;
use std::os::unix::process::ExitStatusExt;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{SIG_DFL, SIG_IGN, SIGABRT, SIGBUS, SIGSEGV, c_int, c_void, siginfo_t};

use super::end::with_pair;
use super::missing::{Loss, Memory, PAGE, REMOTE, WRITE, works};
use super::{alone, process};

static FAULTS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicUsize = AtomicUsize::new(0);
static FILE: AtomicI32 = AtomicI32::new(-1);

/// Handles a fault by making the page accessible, as garbage collectors do.
unsafe extern "C" fn make_accessible(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    FAULTS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the kernel provides the address of the fault.
    unsafe {
        let place = (*info).si_addr();
        LAST.store(place.addr(), Ordering::SeqCst);
        let page = place.map_addr(|address| address & !(PAGE - 1));
        libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }
}

/// Handles a fault by restoring the length of the file. This handler takes only the number of the
/// signal.
unsafe extern "C" fn make_longer(_: c_int) {
    FAULTS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the call has no preconditions.
    unsafe { libc::ftruncate(FILE.load(Ordering::SeqCst), 4 * PAGE as i64) };
}

fn handle(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: an action is plain bits, and the handlers above are of the kind that the flags name.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        let answer = libc::sigaction(signal, &raw const action, ptr::null_mut());
        assert_eq!(answer, 0, "{}", io::Error::last_os_error());
    }
}

/// Reads a byte as a program does.
fn touch(place: *const c_void) -> u8 {
    // SAFETY: a handler makes the byte readable, or the process ends.
    unsafe { place.cast::<u8>().read_volatile() }
}

/// Posts writes to missing memory, and checks that the program's handlers were not called for them.
fn lose_memory() {
    let before = FAULTS.load(Ordering::SeqCst);
    for loss in [Loss::Inaccessible, Loss::Truncated] {
        with_pair(|device, one, _| {
            let (good, lost) = (Memory::new(device), Memory::new(device));
            lost.lose(loss);
            assert_eq!(one.post(7, WRITE, good.bytes(2000), lost.bytes(2000)), 0);
            assert_eq!(one.complete(), (7, REMOTE), "{loss:?}");
        });
    }
    assert_eq!(FAULTS.load(Ordering::SeqCst), before);
    works();
}

#[test]
fn the_programs_handlers_get_only_the_programs_faults() {
    let test = "handlers::the_programs_handlers_get_only_the_programs_faults";
    alone(test, &[], || {
        let newer: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = make_accessible;
        let older: unsafe extern "C" fn(c_int) = make_longer;
        handle(SIGSEGV, newer as usize, libc::SA_SIGINFO);
        handle(SIGBUS, older as usize, 0);
        lose_memory();
        with_pair(|device, _, _| {
            let memory = Memory::new(device);
            memory.lose(Loss::Inaccessible);
            let place = memory.start.wrapping_byte_add(77);
            assert_eq!(touch(place), 0);
            assert_eq!(FAULTS.load(Ordering::SeqCst), 1);
            assert_eq!(LAST.load(Ordering::SeqCst), place.addr());

            let memory = Memory::new(device);
            memory.lose(Loss::Truncated);
            FILE.store(memory.file, Ordering::SeqCst);
            assert_eq!(touch(memory.start), 0);
            assert_eq!(FAULTS.load(Ordering::SeqCst), 2);
        });
        lose_memory();
    });
}

#[test]
fn a_one_shot_handler_is_called_once() {
    let test = "handlers::a_one_shot_handler_is_called_once";
    let ended = process(test, &[], || {
        let handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = make_accessible;
        handle(
            SIGSEGV,
            handler as usize,
            libc::SA_SIGINFO | libc::SA_RESETHAND,
        );
        with_pair(|device, _, _| {
            for _ in 0..2 {
                let memory = Memory::new(device);
                memory.lose(Loss::Inaccessible);
                touch(memory.start);
                eprintln!("came here");
            }
        });
    });
    let Some(ended) = ended else { return };
    assert_eq!(ended.status.signal(), Some(SIGSEGV));
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(errors.matches("came here").count(), 1, "{errors}");
}

#[test]
fn without_a_handler_a_fault_ends_the_program() {
    let test = "handlers::without_a_handler_a_fault_ends_the_program";
    for action in [SIG_DFL, SIG_IGN] {
        for (loss, signal) in [(Loss::Inaccessible, SIGSEGV), (Loss::Truncated, SIGBUS)] {
            let asked = format!("{action} {signal}");
            let ended = process(test, &[("ASKED", &asked)], || {
                // Separate processes run the other three cases.
                let asked = std::env::var("ASKED").expect("the case");
                let (action, signal) = asked.split_once(' ').expect("two numbers");
                let signal = signal.parse().expect("a number");
                handle(signal, action.parse().expect("a number"), 0);
                lose_memory();
                let loss = if signal == SIGBUS {
                    Loss::Truncated
                } else {
                    Loss::Inaccessible
                };
                with_pair(|device, _, _| {
                    let memory = Memory::new(device);
                    memory.lose(loss);
                    touch(memory.start);
                });
            });
            let Some(ended) = ended else { return };
            let errors = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.signal(), Some(signal), "{loss:?}: {errors}");
        }
    }
}

#[test]
fn a_signal_that_is_sent_has_its_previous_effect() {
    let test = "handlers::a_signal_that_is_sent_has_its_previous_effect";
    for (action, ends) in [(SIG_DFL, true), (SIG_IGN, false)] {
        let asked = action.to_string();
        let ended = process(test, &[("ASKED", &asked)], || {
            let asked = std::env::var("ASKED").expect("the case");
            for signal in [SIGBUS, SIGSEGV] {
                handle(signal, asked.parse().expect("a number"), 0);
            }
            lose_memory();
            // SAFETY: the calls have no preconditions.
            assert_eq!(unsafe { libc::raise(SIGBUS) }, 0);
            lose_memory();
        });
        let Some(ended) = ended else { return };
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), ends.then_some(SIGBUS), "{errors}");
        assert_eq!(ended.status.success(), !ends, "{errors}");
    }
}

/// Checks that the standard library's handler still reports a stack overflow.
#[test]
fn a_stack_that_overflows_is_found_out() {
    let test = "handlers::a_stack_that_overflows_is_found_out";
    let ended = process(test, &[], || {
        lose_memory();
        std::hint::black_box(descend(std::hint::black_box(1)));
    });
    let Some(ended) = ended else { return };
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(errors.contains("has overflowed its stack"), "{errors}");
    assert_eq!(ended.status.signal(), Some(SIGABRT));
}

fn descend(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 64]);
    if depth == 0 {
        return 0;
    }
    descend(depth + 1) + room[depth as usize % 64]
}
