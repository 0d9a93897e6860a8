//! Raw frames of peers that violate the protocol. The tests of the library use this file, too.

/// Returns the number of a method: the FNV-1a hash of its name.
pub(crate) fn method(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Returns a frame with any fields.
pub(crate) fn frame(kind: u8, codec: u8, argument: u16, id: (u32, u32), rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind, codec];
    frame.extend(argument.to_be_bytes());
    frame.extend(u32::try_from(rest.len()).unwrap().to_be_bytes());
    frame.extend(id.0.to_be_bytes());
    frame.extend(id.1.to_be_bytes());
    frame.extend(rest);
    frame
}

pub(crate) fn message(frames: &[Vec<u8>]) -> Vec<u8> {
    let count = u16::try_from(frames.len()).unwrap().to_be_bytes();
    [vec![2, 0], count.to_vec(), frames.concat()].concat()
}

pub(crate) fn request(name: &str, id: (u32, u32), body: &[u8]) -> Vec<u8> {
    let numbers = [method(name).to_be_bytes(), 0_u32.to_be_bytes()].concat();
    frame(1, 1, 0, id, &[&numbers, body].concat())
}

/// Returns a settings frame of a client that accepts messages of any length and no items.
pub(crate) fn settings() -> Vec<u8> {
    frame(8, 0, 0, (0, 0), &[[1; 4], [0; 4], [0; 4], [0; 4]].concat())
}

/// Returns messages that violate the protocol, each with a part of the reason that the server
/// sends. The server must offer `Held.echo` and `Held.wait` (which never returns) with a text,
/// `Fed.feed` with a stream to the server, and `Fed.pour` with a stream to the client.
pub(crate) fn violations() -> Vec<(Vec<u8>, &'static str)> {
    let id = (3, 9);
    let wait = || request("Held.wait", id, b"\x05hello");
    let feed = || request("Fed.feed", id, b"");
    let pour = || request("Fed.pour", id, b"");
    let items = |first: u32, count: u16, body: &[u8]| {
        frame(4, 1, count, id, &[&first.to_be_bytes(), body].concat())
    };
    let item = |sequence: u32, body: &[u8]| items(sequence, 0, body);
    let end = |items: u32| frame(5, 0, 0, id, &items.to_be_bytes());
    let window = |items: u32, bytes: u32| {
        let numbers = [items, bytes].map(u32::to_be_bytes).concat();
        frame(6, 0, 0, id, &numbers)
    };
    let mut violations = vec![
        // Random bytes, other protocols and other versions.
        (b"x".to_vec(), "cut off"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "version 71"),
        (vec![0xff; 3000], "version 255"),
        (vec![1, 1, 0, 0, 0, 0, 0, 0], "version 1"),
        (message(&[]), "wrong field"),
        (message(&[frame(77, 0, 0, (0, 0), b"")]), "unknown kind 77"),
        // Several frames in a message that is longer than a batch.
        (
            message(&[request("Held.echo", (0, 0), &[b'x'; 5000]), wait()]),
            "wrong field",
        ),
        // Bytes after the last frame.
        (
            [message(&[frame(7, 0, 0, (0, 0), b"")]), vec![0]].concat(),
            "wrong field",
        ),
        // Fields that are truncated or too long.
        (message(&[frame(1, 1, 0, id, &[0; 7])]), "cut off"),
        (message(&[frame(1, 1, 9, id, &[0; 16])]), "cut off"),
        (message(&[frame(4, 1, 0, id, &[0; 3])]), "cut off"),
        (message(&[frame(5, 0, 0, id, &[0; 5])]), "wrong field"),
        (message(&[frame(6, 0, 0, id, &[0; 7])]), "wrong field"),
        (message(&[frame(7, 0, 0, id, &[0; 1])]), "wrong field"),
        (message(&[frame(8, 0, 0, (0, 0), &[0; 15])]), "wrong field"),
        // Fields that must be zero.
        (message(&[frame(7, 1, 0, id, b"")]), "wrong field"),
        (message(&[frame(7, 0, 1, id, b"")]), "wrong field"),
        (message(&[frame(9, 0, 0, (0, 1), b"")]), "wrong field"),
        // Truncated metadata.
        (
            message(&[frame(
                1,
                1,
                3,
                (0, 0),
                &[0, 0, 0, 1, 0, 0, 0, 0, 9, b'a', b'b'],
            )]),
            "wrong field",
        ),
        // Metadata that is too long.
        (
            message(&[frame(
                1,
                1,
                2100,
                (0, 0),
                &[&[0; 8][..], &[1, b'a', 0x08, 0x30], &[0; 2096]].concat(),
            )]),
            "wrong field",
        ),
        // Answers, which only a server may send.
        (message(&[frame(2, 1, 0, (0, 0), b"")]), "other end"),
        (message(&[frame(3, 0, 1, (0, 0), b"")]), "other end"),
        // Call IDs beyond the slots, or in use.
        (
            message(&[request("Held.echo", (256, 0), b"\x01x")]),
            "was not given",
        ),
        (
            message(&[frame(7, 0, 0, (0xffff_fffe, 0), b"")]),
            "was not given",
        ),
        (
            message(&[frame(5, 0, 0, (256, 0), &[0; 4])]),
            "was not given",
        ),
        (
            message(&[frame(4, 1, 0, (u32::MAX, 0), &[0; 4])]),
            "was not given",
        ),
        (message(&[wait(), wait()]), "call number twice"),
        // Items, ends and windows of a call without streams.
        (message(&[wait(), item(0, b"\x01")]), "takes none"),
        (message(&[wait(), end(0)]), "takes none"),
        (message(&[end(0), wait()]), "takes none"),
        (message(&[wait(), window(1, 1)]), "takes none"),
        (message(&[feed(), window(1, 1)]), "takes none"),
        (message(&[pour(), item(0, b"\x01")]), "takes none"),
        // Items beyond the window, or sent twice. The handler does not take item 1 before item 0.
        (message(&[feed(), item(4096, b"\x01")]), "beyond the window"),
        (
            message(&[feed(), item(u32::MAX, b"\x01")]),
            "beyond the window",
        ),
        (
            message(&[feed(), item(1, b"\x01"), item(1, b"\x01")]),
            "twice",
        ),
        (message(&[feed(), end(4097)]), "beyond the window"),
        // Several items in a frame: beyond the window, sent twice, or with wrong lengths.
        (
            message(&[feed(), items(4095, 2, &[0, 1, 1, 0, 1, 1])]),
            "beyond the window",
        ),
        (
            message(&[feed(), items(2, 2, &[0, 1, 1, 0, 1, 1]), item(3, b"\x01")]),
            "twice",
        ),
        (message(&[feed(), items(0, 2, &[0, 1, 1])]), "cut off"),
        (message(&[feed(), items(0, 1, &[0, 2, 1])]), "cut off"),
        (
            message(&[feed(), items(0, 1, &[0, 1, 1, 0])]),
            "wrong field",
        ),
        (message(&[feed(), end(3), end(2)]), "twice"),
        // Windows that overflow.
        (
            message(&[pour(), window(u32::MAX, 1), window(u32::MAX, 1)]),
            "beyond the window",
        ),
        (
            message(&[pour(), window(1, u32::MAX), window(1, u32::MAX)]),
            "beyond the window",
        ),
        // Repeated settings.
        (message(&[settings(), settings()]), "twice"),
    ];
    // Messages with one frame, truncated at every length.
    let whole = message(&[wait()]);
    let cuts = (1..whole.len()).map(|len| (whole[..len].to_vec(), "cut off"));
    violations.extend(cuts);
    violations
}
