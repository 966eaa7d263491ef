cd /work/main
source scripts/lib.sh
eval "$(sed -n '/^build_main()/,/^}/p' scripts/test.sh)"
time build_main && echo MAIN_BUILT
