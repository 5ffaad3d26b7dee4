#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| minutehand::testing::fuzz::run("spec", data));
