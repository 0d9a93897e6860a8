use std::time::Duration;

use proptest::prelude::*;

use super::*;

const ID: CallId = CallId {
    index: 7,
    generation: 0xabcd_ef01,
};

const LEASE: LeaseId = LeaseId(0x0123_4567_89ab_cdef);

fn message(frames: &[(Header<'_>, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; MESSAGE_HEADER_LEN];
    write_message_header(&mut bytes, u16::try_from(frames.len()).unwrap());
    for (header, body) in frames {
        let at = bytes.len();
        bytes.resize(at + header.len(), 0);
        header.write(&mut bytes[at..], body.len());
        bytes.extend_from_slice(body);
    }
    bytes
}

fn read(message: &[u8]) -> Result<Vec<Frame>, Violation> {
    let mut reader = FrameReader::new(message)?;
    let mut frames = Vec::new();
    while let Some(frame) = reader.next(message)? {
        frames.push(frame);
    }
    Ok(frames)
}

fn settings() -> Settings {
    Settings {
        message_limit: 1 << 24,
        slots: 256,
        window_items: 64,
        window_bytes: 1 << 18,
    }
}

fn every_kind() -> Vec<(Header<'static>, &'static [u8])> {
    let (id, codec) = (ID, 1);
    vec![
        (
            Header::Request {
                id,
                codec,
                method: 0x1234_5678,
                limit: Some(Duration::from_micros(1500)),
                metadata: b"meta",
            },
            b"request",
        ),
        (
            Header::Response {
                id,
                codec,
                is_error: true,
                items: Some(9),
            },
            b"response",
        ),
        (Header::Status { id, status: 4 }, b"reason"),
        (
            Header::Items {
                id,
                codec,
                first: 3,
                count: 0,
            },
            b"item",
        ),
        (Header::End { id, items: 4 }, b""),
        (
            Header::Window {
                id,
                items: 5,
                bytes: 6,
            },
            b"",
        ),
        (Header::Cancel { id }, b""),
        (Header::Settings(settings()), b"hello"),
        (Header::Goodbye { status: 1 }, b"because"),
        (
            Header::BulkRead {
                lease: LEASE,
                tag: 1,
                at: 0x0011_2233_4455_6677,
                len: 8,
            },
            b"",
        ),
        (
            Header::BulkWrite {
                lease: LEASE,
                tag: 2,
                at: 9,
            },
            b"written",
        ),
        (
            Header::BulkAnswer {
                lease: LEASE,
                tag: 3,
                has_ended: true,
            },
            b"read",
        ),
        (Header::Revoke { lease: LEASE }, b""),
        (Header::Release { lease: LEASE }, b""),
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_decoded_without_panicking(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        is_begun: bool,
    ) {
        if is_begun && bytes.len() > 4 {
            bytes[..4].copy_from_slice(&[VERSION, 0, 0, 2]);
            bytes[4] %= 16;
        }
        drop(read(&bytes));
    }

    #[test]
    fn truncated_messages_are_refused(cut in 0_usize..300) {
        let whole = message(&every_kind());
        if cut < whole.len() {
            prop_assert!(read(&whole[..cut]).is_err());
        }
    }
}

#[test]
fn every_kind_round_trips() {
    let bytes = message(&every_kind());
    let frames = read(&bytes).unwrap();
    let text = |range: &Range<usize>| std::str::from_utf8(&bytes[range.clone()]).unwrap();
    let [
        request,
        response,
        status,
        item,
        end,
        window,
        cancel,
        set,
        goodbye,
        bulk @ ..,
    ] = &frames[..]
    else {
        panic!("at least nine frames: {frames:?}");
    };
    let Frame::Request {
        id: ID,
        codec: 1,
        method: 0x1234_5678,
        limit: Some(limit),
        metadata,
        body,
    } = request
    else {
        panic!("{request:?}");
    };
    assert_eq!(*limit, Duration::from_micros(1500));
    assert_eq!((text(metadata), text(body)), ("meta", "request"));
    assert!(matches!(
        response,
        Frame::Response { id: ID, codec: 1, is_error: true, items: Some(9), body } if text(body) == "response"
    ));
    assert!(matches!(status, Frame::Status { id: ID, status: 4, body } if text(body) == "reason"));
    assert!(matches!(
        item,
        Frame::Items { id: ID, codec: 1, first: 3, count: 0, body } if text(body) == "item"
    ));
    assert_eq!(*end, Frame::End { id: ID, items: 4 });
    assert_eq!(
        *window,
        Frame::Window {
            id: ID,
            items: 5,
            bytes: 6
        }
    );
    assert_eq!(*cancel, Frame::Cancel { id: ID });
    assert!(matches!(
        set,
        Frame::Settings { settings: found, metadata } if *found == settings() && text(metadata) == "hello"
    ));
    assert!(matches!(goodbye, Frame::Goodbye { status: 1, body } if text(body) == "because"));
    let [
        Frame::Bulk(read),
        Frame::Bulk(write),
        Frame::Bulk(answer),
        Frame::Bulk(revoke),
        Frame::Bulk(release),
    ] = bulk
    else {
        panic!("five frames of bulk memory: {bulk:?}");
    };
    let expected = BulkFrame::Read {
        lease: LEASE,
        tag: 1,
        at: 0x0011_2233_4455_6677,
        len: 8,
    };
    assert_eq!(*read, expected);
    assert!(matches!(
        write,
        BulkFrame::Write { lease: LEASE, tag: 2, at: 9, body } if text(body) == "written"
    ));
    assert!(matches!(
        answer,
        BulkFrame::Answer { lease: LEASE, tag: 3, has_ended: true, body } if text(body) == "read"
    ));
    assert_eq!(*revoke, BulkFrame::Revoke { lease: LEASE });
    assert_eq!(*release, BulkFrame::Release { lease: LEASE });
}

#[test]
fn a_time_limit_above_71_minutes_is_sent_as_no_limit() {
    let long = Header::Request {
        id: ID,
        codec: 1,
        method: 1,
        limit: Some(Duration::from_secs(5400)),
        metadata: b"",
    };
    let frames = read(&message(&[(long, b"")])).unwrap();
    assert!(matches!(frames[..], [Frame::Request { limit: None, .. }]));
}

#[test]
fn wrong_versions_kinds_and_fields_are_refused() {
    let good = message(&[(Header::Cancel { id: ID }, b"")]);
    let spoiled = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        read(&bytes).unwrap_err()
    };
    assert_eq!(spoiled(0, 1), Violation::Version(1));
    assert_eq!(spoiled(1, 1), Violation::Fields);
    assert_eq!(spoiled(3, 0), Violation::Fields);
    assert_eq!(spoiled(3, 2), Violation::Short);
    assert_eq!(spoiled(4, 0), Violation::Kind(0));
    assert_eq!(spoiled(4, 15), Violation::Kind(15));
    assert_eq!(spoiled(5, 1), Violation::Fields);
    assert_eq!(spoiled(7, 1), Violation::Fields);
    assert_eq!(spoiled(11, 1), Violation::Short);
    let long = [&good[..], &[0]].concat();
    assert_eq!(read(&long), Err(Violation::Fields));
}
