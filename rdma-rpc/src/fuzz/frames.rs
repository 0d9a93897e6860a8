//! The decoder of messages: what it accepts is encoded again, and is the same.

use std::ops::Range;

use crate::metadata::Metadata;
use crate::status::Status;
use crate::wire::{
    BulkHead, Head, Header, MESSAGE_HEADER, Reader, Violation, write_message_header,
};

/// Decodes the bytes as a message, as metadata and as a status.
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
    let Ok(heads) = read(bytes) else {
        return;
    };
    let again = write(bytes, &heads);
    let same = read(&again).expect("an encoded message is valid");
    assert_eq!(same.len(), heads.len());
    assert_eq!(write(&again, &same), again);
}

/// Reads all frames of a message.
pub(super) fn read(message: &[u8]) -> Result<Vec<Head>, Violation> {
    let mut reader = Reader::begin(message)?;
    let mut heads = Vec::new();
    while let Some(head) = reader.next(message)? {
        heads.push(head);
    }
    Ok(heads)
}

/// Encodes the frames of a message.
fn write(message: &[u8], heads: &[Head]) -> Vec<u8> {
    let mut bytes = vec![0; MESSAGE_HEADER];
    let count = u16::try_from(heads.len()).expect("a message counts its frames with 16 bits");
    write_message_header(&mut bytes, count);
    for head in heads {
        let part =
            |range: &Range<usize>| message.get(range.clone()).expect("a range of the message");
        let none = &[][..];
        let (header, body) = match head {
            Head::Request {
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
            Head::Response {
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
            &Head::Status {
                id,
                status,
                ref body,
            } => (Header::Status { id, status }, part(body)),
            &Head::Items {
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
            &Head::End { id, items } => (Header::End { id, items }, none),
            &Head::Window { id, items, bytes } => (Header::Window { id, items, bytes }, none),
            &Head::Cancel { id } => (Header::Cancel { id }, none),
            &Head::Settings {
                settings,
                ref metadata,
            } => (Header::Settings(settings), part(metadata)),
            &Head::Goodbye { status, ref body } => (Header::Goodbye { status }, part(body)),
            Head::Bulk(head) => bulk_header(head, part),
        };
        let at = bytes.len();
        bytes.resize(at + header.len(), 0);
        header.write(&mut bytes[at..], body.len());
        bytes.extend_from_slice(body);
    }
    bytes
}

/// Returns the header and the body of a frame of bulk memory. `part` returns a range of the
/// message.
fn bulk_header<'m>(
    head: &BulkHead,
    part: impl Fn(&Range<usize>) -> &'m [u8],
) -> (Header<'m>, &'m [u8]) {
    let none = &[][..];
    match *head {
        BulkHead::Read {
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
        BulkHead::Write {
            lease,
            tag,
            at,
            ref body,
        } => (Header::BulkWrite { lease, tag, at }, part(body)),
        BulkHead::Answer {
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
        BulkHead::Revoke { lease } => (Header::Revoke { lease }, none),
        BulkHead::Release { lease } => (Header::Release { lease }, none),
    }
}
