//! The command line of `cargo xtask`. The macro also generates the text of `--help` from it.

use std::ffi::OsString;
use std::path::PathBuf;

xflags::xflags! {
    /// Automation of the workspace. Every command installs what it needs, prints what it runs,
    /// and can be run twice.
    cmd xtask {
        /// Set up a Soft-RoCE device of the kernel: on this machine if its kernel has the module,
        /// else in a QEMU guest (a virtual machine).
        cmd softroce-setup {
            /// Network device that the Soft-RoCE device uses [default: that of an existing device,
            /// else the device of the default route, else a new dummy device].
            optional --netdev interface: String
            /// Name of the Soft-RoCE device [default: an existing device, else the first unused name
            /// of rxe_0, rxe_1, ...].
            optional --name name: String
            /// Change nothing. Report what is present, what is missing, and how to fix it. The exit
            /// status is 0 if a device can be used.
            optional --check
        }
        /// Run a command with an RDMA device: the kernel's Soft-RoCE or softroce.
        cmd on {
            /// Run COMMAND on a machine with the kernel's Soft-RoCE device: this machine if it has
            /// such a device, else a QEMU guest that is booted for this call and sees this
            /// machine's files.
            cmd rxe {
                /// Boot the guest even if this machine has a device.
                optional --guest
                /// Create two devices in the guest, rxe_0 and rxe_1, on the ends of a veth pair.
                optional --veth
                /// Create no device in the guest, and load no kernel module of Soft-RoCE.
                optional --no-link
                /// Load this kernel module in the guest, with the modules that it depends on.
                repeated --module name: String
                /// MTU of the guest's network devices in bytes [default: 4200].
                optional --mtu n: u32
                /// End COMMAND after this time, with exit status 124; 0 means no limit [default:
                /// 3600].
                optional --timeout seconds: u64
                /// Number of the guest's processors [default: as many as this machine has, but 2 to
                /// 8].
                optional --cpu n: u32
                /// Memory of the guest in MiB; half of it can hold written files [default: 2048].
                optional --memory mib: u32
                /// A directory of this machine that the guest may write to. Writes to other
                /// directories stay in the guest's memory.
                repeated --share dir: PathBuf
                /// The command and its arguments, after `--`.
                repeated command: OsString
            }
            /// Run COMMAND here with the user-space device softroce preloaded: any program that
            /// uses libibverbs sees `softroce0`. Needs no privileges and no kernel support.
            cmd softroce {
                /// Let COMMAND find softroce also under the name libibverbs.so.1, for programs that
                /// open the library by its name.
                optional --as-library
                /// The command and its arguments, after `--`.
                repeated command: OsString
            }
        }
        /// Run the tests of the workspace. Tests that need a device run on softroce, and then on
        /// the kernel's Soft-RoCE: on this machine if it has such a device, else in a QEMU guest.
        /// The report at the end names each failed test with the command that repeats it. The exit
        /// status is not 0 if a test failed, or could not run because a device or a package is
        /// missing.
        cmd test {
            /// Run only tests that together take less than 3 minutes once everything is built: no
            /// guest, no C programs, no programs of other projects over streams, no documentation
            /// examples, and fewer repetitions of random tests. The report lists what was left out.
            optional --quick
            /// Run only the tests of this package. Can be given several times.
            repeated --package name: String
            /// Run only the test program of this name, such as `holes` for
            /// rdma-core/tests/holes.rs, or `doc-tests` for the examples in the documentation. Can
            /// be given several times.
            repeated --program name: String
            /// Run only the tests whose names contain NAME. No guest is booted if no test would run
            /// in it.
            optional --filter name: String
            /// Run only the test whose full name is the name given by --filter.
            optional --exact
            /// Run only the tests that need no device.
            optional --host-only
            /// Run only the tests that need a device.
            optional --device-only
            /// Test only this device: `softroce`; `packets` or `shared` (softroce, which sends
            /// messages within a process as packets, or through shared memory as between two
            /// processes); `hosts` (softroce, between two network namespaces); `rxe` (the kernel's
            /// Soft-RoCE); `wire` (softroce and the kernel's Soft-RoCE on one network); or the name
            /// of a device of this machine [default: the device that RDMA_DEVICE names, else all but
            /// named devices].
            optional --device name: String
        }
        /// Run the benchmarks on this machine's RDMA device, or on softroce if the machine has no
        /// RDMA device. Without --quick, compare rdma-core with perftest, and on softroce also
        /// judge the results by goals. The exit status is not 0 if a goal is missed. Results are
        /// written to target/rdma-bench.
        cmd bench {
            /// Print one table with the latency, message rate and bandwidth of every layer, within
            /// 3 minutes, and judge no goal. With --only, measure the named comparisons or tests in
            /// short runs.
            optional --quick
            /// Measure only the comparison of this name in the benchmark `limits` (G8a), or all
            /// comparisons of a goal (G8) or of a letter (G). Any other NAME selects the tests
            /// whose names contain NAME (send_lat_8).
            optional --only name: String
            /// Measure this device: `softroce`, `rxe`, or the name of a device of this machine
            /// [default: RDMA_DEVICE, else the first device of this machine, else softroce].
            optional --device name: String
            /// End a program of the benchmarks after this time; 0 means no limit [default: 7200,
            /// with --quick 1800].
            optional --timeout seconds: u64
            /// Run only the comparison with perftest, with these arguments, which follow `--`.
            repeated arguments: OsString
        }
        /// Count the instructions for posting and polling over rdma-core and for the same loop in
        /// C, on softroce. Profiles are written to target/callgrind. The exit status is 0 if all
        /// goals are met.
        cmd callgrind {}
        /// Apply known bugs to softroce and rdma-core, one at a time in a copy of the workspace,
        /// and check that the test named for each bug fails.
        cmd plant {
            /// Apply only this bug [default: all of ibverbs-sys/softroce/tests/planted and
            /// rdma-core/tests/planted].
            repeated --bug name: String
            /// Number of random schedules that the simulated network runs before a bug counts as
            /// missed [default: 500].
            optional --schedules n: u64
        }
        /// Fuzz softroce and rdma-rpc: search for input that makes them panic, answer wrongly or
        /// misuse memory. Failing inputs, and inputs that reach new code, are written to
        /// target/fuzz.
        cmd fuzz {
            /// Fuzz only this target [default: all of ibverbs-sys/softroce/fuzz and rdma-rpc/fuzz].
            repeated --target name: String
            /// Time to fuzz each target, in seconds [default: 60].
            optional --seconds n: u64
            /// Do not fuzz. Run the one chosen target on this input, which made it fail.
            optional --replay input: PathBuf
            /// Add the inputs that reach new code to the checked-in corpus.
            optional --keep
        }
        /// Run tests that find more bugs the longer they run: killed processes in the middle of
        /// their traffic or on a shared address, queue pairs destroyed during many writes, random
        /// schedules of a simulated network, random rounds of rdma-core's objects, futures of
        /// rdma-async dropped at random points, published values, 10,000 callers of rdma-rpc, killed
        /// servers of a block store, and fuzzing. A failure is printed with the command that repeats
        /// it.
        cmd soak {
            /// Run only the soak test of this name [default: all soak tests, which share the time
            /// equally].
            optional name: String
            /// Time for all soak tests together, in minutes, without building [default: 20].
            optional --minutes n: u64
            /// List the soak tests without running them.
            optional --list
        }
        /// Run tests on softroce under AddressSanitizer: tests of rdma-core that create, fail and
        /// drop many objects, and a test of rdma-async that drops many futures.
        cmd sanitize {
            /// Run this test program of rdma-core or rdma-async instead of the default programs.
            repeated --test name: String
        }
        /// Run the programs that PLAN lists. `cargo xtask test` runs this command in the guest.
        cmd run-plan {
            /// The file that lists the programs with their time limits.
            required plan: PathBuf
            /// The file to which the outcomes of the programs are appended.
            required outcomes: PathBuf
        }
        /// Regenerate the checked-in bindings.
        cmd bindgen {
            /// Only compare the checked-in bindings with newly generated bindings.
            optional --check
        }
    }
}
