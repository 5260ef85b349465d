#!/bin/sh
# plm_rsh_agent of mpirun, called as `netns_agent.sh HOST COMMAND...`: where ssh would go to another
# machine, this goes into the network namespace MESHFOLD_NETNS, under a host name of its own, so
# that Open MPI takes it for another machine.
shift
exec ip netns exec "$MESHFOLD_NETNS" unshare --uts sh -c "hostname $MESHFOLD_NETNS; $*"
