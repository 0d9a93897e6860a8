use std::fmt;

/// A program to run, and what it must print.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Program and arguments. The client gets the server's address as an additional argument.
    pub(crate) words: Vec<&'static str>,
    /// Name of the Debian package of the program.
    pub(crate) package: &'static str,
    /// Path that the device must use between server and client. `None`: the shortest.
    pub(crate) way: Option<&'static str>,
    /// Set if the program runs without a peer.
    pub(crate) alone: bool,
    /// Words in the output, for a pair in that of the client: the server of a read prints nothing.
    pub(crate) says: &'static [&'static str],
}

impl fmt::Display for Case {
    /// Writes the command line as one word.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join("_").replace("--", "-").replace("_-", "-"))?;
        (self.way).map_or(Ok(()), |way| write!(f, "_by_{way}"))
    }
}

const UTILITIES: &str = "ibverbs-utils";
const PERFTEST: &str = "perftest";

/// Returns all cases.
pub(crate) fn cases() -> Vec<Case> {
    let alone = |line: &'static str, says| Case {
        words: line.split(' ').collect(),
        package: UTILITIES,
        way: None,
        alone: true,
        says,
    };
    let mut cases = vec![
        alone("ibv_devices", &["softroce0"]),
        alone(
            "ibv_devinfo -v",
            &[
                "softroce0",
                "PORT_ACTIVE",
                "Ethernet",
                "RoCE v2",
                "GID[  0]",
                "max_srq_wr",
            ],
        ),
    ];
    let pingpong = |line: &'static str| Case {
        words: line.split(' ').collect(),
        package: UTILITIES,
        way: None,
        alone: false,
        // The XRC program does not print the time.
        says: if line.starts_with("ibv_xsrq") {
            &["success"]
        } else {
            &["usec/iter"]
        },
    };
    cases.extend(PINGPONGS.iter().map(|line| pingpong(line)));
    let perftest = |line: &'static str, way| Case {
        words: line.split(' ').collect(),
        package: PERFTEST,
        way,
        alone: false,
        says: &["#bytes"],
    };
    cases.extend(PERFTESTS.iter().map(|line| perftest(line, None)));
    cases.extend(BY_PACKETS.iter().map(|line| perftest(line, Some("udp"))));
    cases
}

/// Programs of `ibverbs-utils`; `-c` checks every byte.
const PINGPONGS: &[&str] = &[
    "ibv_rc_pingpong -g 0",
    "ibv_rc_pingpong -g 0 -e",
    "ibv_rc_pingpong -g 0 -N",
    "ibv_rc_pingpong -g 0 -c",
    "ibv_rc_pingpong -g 1 -c",
    "ibv_rc_pingpong -g 0 -c -t",
    "ibv_rc_pingpong -g 0 -c -o",
    "ibv_rc_pingpong -g 0 -c -j",
    "ibv_rc_pingpong -g 0 -c -s 1048576 -n 20 -m 4096",
    "ibv_rc_pingpong -g 0 -c -s 0",
    "ibv_uc_pingpong -g 0 -c",
    "ibv_ud_pingpong -g 0 -c",
    "ibv_ud_pingpong -g 1 -c -e",
    "ibv_srq_pingpong -g 0 -c",
    "ibv_srq_pingpong -g 0 -c -e -q 4",
    "ibv_xsrq_pingpong -g 0",
    // With files limited to a mebibyte there is no shared memory, and messages go by packets.
    "prlimit --fsize=1048576 ibv_rc_pingpong -g 0 -c",
];

/// Programs of `perftest` that use shared memory otherwise, and packets here.
const BY_PACKETS: &[&str] = &[
    "ib_send_lat -a -n 20",
    "ib_send_lat -e -n 500",
    "ib_send_bw -b -n 500",
    "ib_send_bw -q 4 -n 500",
    "ib_write_lat -n 1000",
    "ib_write_bw -a -n 20",
    "ib_read_lat -n 1000",
    "ib_read_bw -q 4 -n 500",
    "ib_atomic_lat -n 1000",
    "ib_atomic_bw -b -n 500",
];

/// Programs of `perftest`.
const PERFTESTS: &[&str] = &[
    "ib_send_lat -n 1000",
    "ib_send_bw -n 1000",
    "ib_write_lat -n 1000",
    "ib_write_bw -n 1000",
    "ib_read_lat -n 1000",
    "ib_read_bw -n 1000",
    "ib_atomic_lat -n 1000",
    "ib_atomic_bw -n 1000",
    "ib_atomic_lat -A CMP_AND_SWAP -n 1000",
    "ib_send_lat -c UC -n 500",
    "ib_send_bw -c UC -n 500 -s 1024",
    "ib_send_lat -c UD -n 500 -s 1024",
    "ib_send_bw -c UD -n 500 -s 1024",
    "ib_write_lat -c UC -n 500",
    "ib_write_bw -c UC -n 500 -s 1024",
    "ib_send_lat -a -n 20",
    "ib_send_bw -a -n 20",
    "ib_write_lat -a -n 20",
    "ib_write_bw -a -n 20",
    "ib_read_lat -a -n 20",
    "ib_read_bw -a -n 20",
    "ib_send_bw -b -n 500",
    "ib_write_bw -b -n 500",
    "ib_read_bw -b -n 500",
    "ib_atomic_bw -b -n 500",
    "ib_send_bw -q 4 -n 500",
    "ib_write_bw -q 4 -n 500",
    "ib_read_bw -q 4 -n 500",
    "ib_atomic_bw -q 4 -n 500",
    "ib_send_lat -e -n 500",
    "ib_send_bw -e -n 500",
    "ib_read_bw -e -n 500",
    "ib_send_bw --use-srq -n 500",
    "ib_send_lat --use-srq -n 500",
];
