insmod smc_rs.ko && python3 tmp/smoke.py; rc=$?
ls /proc/sys/net/smc; cat /proc/net/protocols | grep -i smc
ip netns add x; ip netns exec x ls /proc/sys/net/smc; ip netns del x
rmmod smc_rs && echo unloaded
for i in 1 2 3 4 5; do insmod smc_rs.ko; ip netns add y$i; rmmod smc_rs || echo FAIL; ip netns del y$i; done
exit $rc
