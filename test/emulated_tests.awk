# Prints SUITE/NAME of the tests inside #ifdef EMULATED, which need the emulated GPU.
FNR == 1 { depth = 0 }
/^#if(def EMULATED| defined EMULATED)/ { depth = 1; next }
depth && /^#if/ { depth++ }
depth && /^#endif/ { depth-- }
depth == 1 && /^#else/ { depth = 0 }
depth && match($0, /^Test\([a-z0-9_]+, *[a-z0-9_]+/) {
    name = substr($0, 6, RLENGTH - 5)
    sub(/, */, "/", name)
    print name
}
