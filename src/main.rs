//! The program: reads the command line, runs it, gives its exit code.

fn main() -> std::process::ExitCode {
    minutehand::cli::run(std::env::args_os().collect()).into()
}
