//! The memory of completed requests must be taken before the next request is posted.

use rdma_core::{Buffer, SendQueue, SendRequest, WorkCompletion};

fn example(mut queue: SendQueue<Buffer>, buffer: Buffer, completion: &WorkCompletion) {
    let mut retired = queue.complete(completion);
    let _ = queue.post(SendRequest::send(buffer));
    drop(retired.next());
}

fn main() {}
