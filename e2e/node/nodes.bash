# Nodes of e2e/cluster, sourced by it: each is a set of namespaces on this machine (processes, mounts, network) with its own
# containerd, kubelet, kube-proxy and enforcement of network policies. What happens inside goes with the namespaces.
# shellcheck shell=bash
# shellcheck disable=SC2154  # state, here, bin and config are e2e/cluster's.

bridge=kvasir0
api_address=10.11.0.1
# Folders that nodes share by name: each node sees its own in their place.
shadowed=(/var/lib/kubelet /var/lib/cni /var/log/containers /var/log/pods /run/containerd /run/netns /etc/cni/net.d)

node_address() { echo "10.11.0.$((10 + ${1#n}))"; }
node_pods() { echo "10.244.${1#n}.0/24"; }
node_names() { seq -f 'n%g' "$(cat "$state/nodes" 2>/dev/null || echo 0)"; }
node_folder() { echo "$state/node/$1"; }

# What nodes stand on, from Debian where it is missing.
node_needs() {
    [ "$(id -u)" -eq 0 ] || { echo "e2e/cluster: nodes need root; --nodes 0 starts a control plane without it" >&2; return 77; }
    local -a missing=()
    local pair
    for pair in containerd:containerd runc:runc nft:nftables iptables:iptables ipset:ipset conntrack:conntrack ip:iproute2 \
        socat:socat busybox:busybox-static cc:gcc python3:python3 /usr/lib/cni/ptp:containernetworking-plugins; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} -eq 0 ] && return
    command -v apt-get >/dev/null || { echo "e2e/cluster: missing: ${missing[*]}" >&2; return 69; }
    echo "installing ${missing[*]}" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null
}

# Says why this machine can't have nodes, if it can't; tries in namespaces of its own what nodes do.
node_can() {
    local root fault
    node_needs || return
    for root in $(cgroup_roots); do
        { mkdir "$root/kvasir-probe" && rmdir "$root/kvasir-probe"; } 2>/dev/null || { echo "e2e/cluster: no cgroup can be made in $root" >&2; return 69; }
    done
    sysctl -q "net.ipv4.ip_forward=$(sysctl -n net.ipv4.ip_forward)" 2>/dev/null || { echo "e2e/cluster: net.ipv4.ip_forward can't be set" >&2; return 69; }
    fault=$(unshare --pid --fork --mount-proc --mount --net --propagation private -- bash -ec '
        mount -t tmpfs tmpfs /mnt
        ip link add probe type bridge
        ip link add probe0 type veth peer name probe1
        nft add table ip probe
        ipset create probe hash:ip
        iptables -N PROBE
        iptables -A PROBE -m set --match-set probe src -m comment --comment probe -j MARK --set-mark 1
        iptables -A PROBE -m conntrack --ctstate ESTABLISHED -j ACCEPT' 2>&1 >/dev/null) && return
    echo "e2e/cluster: namespaces, links or packet filters aren't to be had: $fault" >&2
    return 69
}

# The machine's side of the nodes' network, and what of the machine changes until `down`.
node_network() {
    local setting folder
    for setting in net.ipv4.ip_forward vm.overcommit_memory kernel.panic kernel.panic_on_oops; do
        sysctl "$setting" >>"$state/sysctl"
    done
    sysctl -q net.ipv4.ip_forward=1
    for folder in "${shadowed[@]}"; do
        until [ -d "$folder" ]; do
            local top=$folder
            until [ -d "$(dirname "$top")" ]; do top=$(dirname "$top"); done
            mkdir "$top"
            echo "$top" >>"$state/made"
        done
    done
    ip link add "$bridge" type bridge
    ip address add "$api_address/24" dev "$bridge"
    ip link set "$bridge" up
}

# Makes a node and starts its parts; it becomes Ready later.
node_start() {
    local node=$1 folder
    folder=$(node_folder "$node")
    mkdir -p "$folder/containerd"
    leaf ca "$node" "/O=system:nodes/CN=system:node:$node"
    kubeconfig "$node"
    node_cgroup "$node"
    node_namespaces "$node"
    node_link "$node"
    node_settings "$node"
    node_part "$node-containerd"
    wait_for "containerd of $node" node_ctr "$node" version
    node_load "$node" "$state/pause.tar"
    node_part "$node-kubelet"
    node_part "$node-kube-proxy"
}

# The cgroup that all pods of the node are in. cgroup v1 has one tree for each controller, and an empty cpuset runs nothing.
node_cgroup() {
    local root file
    for root in $(cgroup_roots); do
        mkdir -p "$root/kvasir-$1"
        for file in cpuset.cpus cpuset.mems; do
            if [ -f "$root/kvasir-$1/$file" ] && [ -f "$root/$file" ]; then cat "$root/$file" >"$root/kvasir-$1/$file"; fi
        done
    done
}

cgroup_roots() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts; }

# One process holds the namespaces; when it ends, so does every process of the node.
node_namespaces() {
    local node=$1 outer folder place
    folder=$(node_folder "$node")
    for place in "${shadowed[@]}"; do mkdir -p "$folder/own$place"; done
    # shellcheck disable=SC2016 # expanded by the inner shell
    setsid unshare --pid --fork --mount-proc --mount --net --propagation private -- bash -ec '
        own=$1; hold=$2; shift 2
        mount --make-rshared /
        for place; do mount --bind "$own$place" "$place"; done
        sysctl -q net.ipv4.ip_forward=1
        exec "$hold"' node "$folder/own" "$state/pause" "${shadowed[@]}" >>"$state/log/$node.log" 2>&1 </dev/null &
    outer=$!
    echo "$outer" >"$state/$node-outer.pid"
    child_of "$outer" "$state/$node.pid"
    wait_for "namespaces of $node" held "$node"
}

held() { [ "$(readlink "/proc/$(cat "$state/$1.pid")/exe")" = "$state/pause" ]; }

# The only child of a process, once there is one.
child_of() {
    for _ in $(seq 100); do
        pgrep -P "$1" >"$2" && return
        kill -0 "$1" 2>/dev/null || break
        sleep 0.05
    done
    echo "e2e/cluster: $(basename "$2" .pid) ended at once" >&2
    return 1
}

# Runs a command inside of a node.
in_node() {
    local node=$1
    shift
    nsenter --target "$(cat "$state/$node.pid")" --pid --mount --net -- "$@"
}

# A cable to the bridge, and the way to pods of this node for everybody.
node_link() {
    local node=$1 other
    ip link add "kvasir-$node" type veth peer name eth0 netns "$(cat "$state/$node.pid")"
    ip link set "kvasir-$node" master "$bridge" up
    ip route add "$(node_pods "$node")" via "$(node_address "$node")"
    in_node "$node" ip link set lo up
    in_node "$node" ip address add "$(node_address "$node")/24" dev eth0
    in_node "$node" ip link set eth0 up
    in_node "$node" ip route add default via "$api_address"
    for other in $(node_names); do
        [ "$other" = "$node" ] || in_node "$node" ip route add "$(node_pods "$other")" via "$(node_address "$other")"
    done
}

# Traffic between pods is routed and never masqueraded: policies see the pods' own addresses.
# Where CAP_SYS_RESOURCE is missing, no process may lower its oom_score_adj, and a sandbox that tries dies.
node_settings() {
    local node=$1 folder
    folder=$(node_folder "$node")
    cat >"$folder/containerd.toml" <<TOML
version = 2
root = "$folder/containerd"
state = "/run/containerd/state"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "kvasir.test/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
TOML
    cat >"$folder/own/etc/cni/net.d/10-pods.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "ranges": [[{"subnet": "$(node_pods "$node")"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
    : >"$folder/resolv.conf"
    cat >"$folder/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $state/pki/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /kvasir-$node
failSwapOn: false
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: $folder/resolv.conf
volumePluginDir: /var/lib/kubelet/volume-plugins
nodeStatusUpdateFrequency: 4s
syncFrequency: 10s
# The machine's disk is everybody's; a test cluster leaves it alone.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%, imagefs.inodesFree: 1%}
YAML
}

# Starts a part of a node: NODE-containerd, NODE-kubelet, NODE-kube-proxy or NODE-policies.
node_part() {
    local part=$1 node=${1%%-*} folder
    local -a arguments
    folder=$(node_folder "$node")
    case ${part#*-} in
        containerd) arguments=(--config "$folder/containerd.toml") ;;
        kubelet) arguments=(--config "$folder/kubelet.yaml" --kubeconfig "$state/$node.kubeconfig" --hostname-override "$node"
            --node-ip "$(node_address "$node")") ;;
        kube-proxy) arguments=(--kubeconfig "$state/kube-proxy.kubeconfig" --proxy-mode nftables --cluster-cidr 10.244.0.0/16
            --hostname-override "$node" --conntrack-max-per-core 0) ;;
        policies) arguments=(--kubeconfig "$state/policies.kubeconfig" --node "$node") ;;
        *) echo "e2e/cluster: no part named $part" >&2; return 64 ;;
    esac
    setsid nsenter --target "$(cat "$state/$node.pid")" --pid --mount --net -- "$(binary "$part")" "${arguments[@]}" \
        >>"$state/log/$part.log" 2>&1 </dev/null &
    child_of $! "$state/$part.pid"
}

node_ready() { [ "$("$bin/kubectl" --kubeconfig "$config" get nodes --no-headers | grep -cw Ready)" -eq "$(cat "$state/nodes")" ]; }

node_ctr() {
    local node=$1
    shift
    in_node "$node" ctr --address /run/containerd/containerd.sock --namespace k8s.io "$@"
}

# Without a name it is the archive's own.
node_load() { node_ctr "$1" images import ${3:+--base-name "$3"} "$2" >/dev/null; }

# Takes an image into every node's store.
load_image() {
    local node archive
    [ -f "${1-}" ] || { echo "usage: e2e/cluster load-image ARCHIVE [NAME]" >&2; return 64; }
    # Inside of a node the working folder is another one.
    archive=$(readlink -f "$1")
    for node in $(node_names); do node_load "$node" "$archive" "${2-}"; done
}

# pause, the cluster's DNS, and a shell with network tools for tests.
node_images() {
    cc -static -Os -s -Wall -Wextra -o "$state/pause" "$here/node/pause.c"
    "$here/node/pack-image" "$state/pause.tar" kvasir.test/pause:1 /pause "$state/pause=/pause"
    "$here/node/pack-image" "$state/dns.tar" kvasir.test/dns:1 /dns "$(readlink -f "$bin/dns")=/dns"
    # Programs of this machine run in it when its /usr is mounted.
    "$here/node/pack-image" "$state/tools.tar" kvasir.test/tools:1 /bin/busybox "$(readlink -f "$(command -v busybox)")=/bin/busybox" \
        @busybox=/bin/sh @/usr/lib=/lib @/usr/lib64=/lib64
}

# Starts or ends the enforcement of network policies. Rules outlive who wrote them, so ending it removes them.
policies() {
    local node
    case ${1-} in on | off) ;; *) echo "usage: e2e/cluster policies on|off" >&2; return 64 ;; esac
    for node in $(node_names); do
        stop "$node-policies"
        if [ "$1" = on ]; then
            node_part "$node-policies"
        else
            in_node "$node" bash -c '
                iptables-save -t filter | grep -v -- KUBE-ROUTER | grep -v -- KUBE-POD-FW | grep -v -- KUBE-NWPLCY | iptables-restore
                ipset destroy'
        fi
    done
}

# Ends all processes of a node and takes back what lies outside of its namespaces.
node_end() {
    local node=$1 root
    if held "$node" 2>/dev/null; then
        kill -9 "$(cat "$state/$node.pid")"
        for _ in $(seq 200); do kill -0 "$(cat "$state/$node-outer.pid")" 2>/dev/null || break; sleep 0.05; done
    fi
    ip link delete "kvasir-$node" 2>/dev/null || true
    for root in $(cgroup_roots); do
        [ -d "$root/kvasir-$node" ] || continue
        for _ in $(seq 100); do
            find "$root/kvasir-$node" -depth -type d -exec rmdir {} + 2>/dev/null && break
            sleep 0.05
        done
    done
}

# Leaves the machine as it was.
nodes_end() {
    local node
    has_nodes || return 0
    for node in $(node_names); do node_end "$node"; done
    ip link delete "$bridge" 2>/dev/null || true
    if [ -f "$state/sysctl" ]; then sysctl -q -p "$state/sysctl"; fi
    if [ -f "$state/made" ]; then tac "$state/made" | xargs -r rmdir --ignore-fail-on-non-empty; fi
}
