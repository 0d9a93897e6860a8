mod in_process;
mod offers;
mod ring_message;
mod unreliable;
