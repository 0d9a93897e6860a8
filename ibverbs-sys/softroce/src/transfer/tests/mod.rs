mod brief;
mod in_process;
mod offers;
