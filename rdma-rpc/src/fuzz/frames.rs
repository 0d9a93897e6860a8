//! Fuzz target: the decoders of messages, metadata and statuses.

use std::ops::Range;

use crate::metadata::Metadata;
use crate::status::Status;
use crate::wire::{
    BulkFrame, Frame, FrameReader, Header, MESSAGE_HEADER_LEN, Violation, write_message_header,
};

/// Tests the decoders of the wire format with arbitrary `bytes`. Decodes the bytes as a message, as
/// metadata and as a status, and encodes each decoded value. Panics if an encoded message or status
/// cannot be decoded again. Also panics if a repeated encoding of metadata or a message yields
/// other bytes.
pub fn frames(bytes: &[u8]) {
    if let Some(metadata) = Metadata::decode(bytes) {
        let pairs = metadata.iter();
        let again = pairs.fold(Metadata::default(), |again, (name, value)| {
            again.with(name, value)
        });
        assert_eq!(again.encoded(), metadata.encoded());
    }
    if let Some((&number, body)) = bytes.split_first()
        && let Some(status) = Status::from_parts(number.into(), body)
    {
        let (number, body) = status.to_parts();
        assert!(body.len() <= 512 && Status::from_parts(number, &body).is_some());
    }
    let Ok(frames) = read(bytes) else {
        return;
    };
    let again = write(bytes, &frames);
    let same = read(&again).expect("an encoded message is valid");
    assert_eq!(same.len(), frames.len());
    assert_eq!(write(&again, &same), again);
}

/// Parses `message`, and returns its frames. Fails if the message is invalid.
pub(super) fn read(message: &[u8]) -> Result<Vec<Frame>, Violation> {
    let mut reader = FrameReader::new(message)?;
    let mut frames = Vec::new();
    while let Some(frame) = reader.next(message)? {
        frames.push(frame);
    }
    Ok(frames)
}

/// Encodes frames as a new message, and returns its bytes. `message` is the message from which
/// `frames` were parsed, and contains the bodies of the frames.
fn write(message: &[u8], frames: &[Frame]) -> Vec<u8> {
    let mut bytes = vec![0; MESSAGE_HEADER_LEN];
    let count = u16::try_from(frames.len()).expect("a message counts its frames with 16 bits");
    write_message_header(&mut bytes, count);
    for frame in frames {
        let part =
            |range: &Range<usize>| message.get(range.clone()).expect("a range of the message");
        let none = &[][..];
        let (header, body) = match frame {
            Frame::Request {
                id,
                codec,
                method,
                limit,
                metadata,
                body,
            } => (
                Header::Request {
                    id: *id,
                    codec: *codec,
                    method: *method,
                    limit: *limit,
                    metadata: part(metadata),
                },
                part(body),
            ),
            Frame::Response {
                id,
                codec,
                is_error,
                items,
                body,
            } => (
                Header::Response {
                    id: *id,
                    codec: *codec,
                    is_error: *is_error,
                    items: *items,
                },
                part(body),
            ),
            &Frame::Status {
                id,
                status,
                ref body,
            } => (Header::Status { id, status }, part(body)),
            &Frame::Items {
                id,
                codec,
                first,
                count,
                ref body,
            } => (
                Header::Items {
                    id,
                    codec,
                    first,
                    count,
                },
                part(body),
            ),
            &Frame::End { id, items } => (Header::End { id, items }, none),
            &Frame::Window { id, items, bytes } => (Header::Window { id, items, bytes }, none),
            &Frame::Cancel { id } => (Header::Cancel { id }, none),
            &Frame::Settings {
                settings,
                ref metadata,
            } => (Header::Settings(settings), part(metadata)),
            &Frame::Goodbye { status, ref body } => (Header::Goodbye { status }, part(body)),
            Frame::Bulk(frame) => bulk_header(frame, part),
        };
        let at = bytes.len();
        bytes.resize(at + header.len(), 0);
        header.write(&mut bytes[at..], body.len());
        bytes.extend_from_slice(body);
    }
    bytes
}

/// Converts `frame`, a parsed frame about bulk memory, back to its header and body. `part` must
/// return the bytes at a range of positions in the message from which the frame was parsed.
fn bulk_header<'m>(
    frame: &BulkFrame,
    part: impl Fn(&Range<usize>) -> &'m [u8],
) -> (Header<'m>, &'m [u8]) {
    let none = &[][..];
    match *frame {
        BulkFrame::Read {
            lease,
            tag,
            at,
            len,
        } => {
            let header = Header::BulkRead {
                lease,
                tag,
                at,
                len,
            };
            (header, none)
        }
        BulkFrame::Write {
            lease,
            tag,
            at,
            ref body,
        } => (Header::BulkWrite { lease, tag, at }, part(body)),
        BulkFrame::Answer {
            lease,
            tag,
            has_ended,
            ref body,
        } => {
            let header = Header::BulkAnswer {
                lease,
                tag,
                has_ended,
            };
            (header, part(body))
        }
        BulkFrame::Revoke { lease } => (Header::Revoke { lease }, none),
        BulkFrame::Release { lease } => (Header::Release { lease }, none),
    }
}
