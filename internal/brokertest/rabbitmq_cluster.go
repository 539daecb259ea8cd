package brokertest

import (
	"os"
	"testing"
)

// clusterNodes is the smallest number of nodes of which one may fail.
const clusterNodes = 3

// RabbitMQCluster returns the nodes of a cluster that ends with the test. The cluster has an
// empty virtual host, which is that of each node's URL. A quorum queue has a member on each node
// unless the queue says otherwise.
func RabbitMQCluster(t testing.TB) []RabbitMQNode {
	t.Helper()
	notShort(t, "a cluster of its own")
	mapper, err := freePort()
	must(t, err)
	var nodes []RabbitMQNode
	cookies := ""
	for i := range clusterNodes {
		s, err := newRabbitMQ(mapper, cookies)
		must(t, err)
		if i == 0 {
			cookies = s.dir
			must(t, s.startMapper(mapper))
		}
		t.Cleanup(func() { must(t, s.stop(os.Kill)) })
		n := RabbitMQNode{use(t, s)}
		if i > 0 {
			n.join(nodes[0])
		}
		nodes = append(nodes, n)
	}
	nodes[0].addVhost()
	part := nodes[0].URL[len(nodes[0].server.url("")):]
	for _, n := range nodes[1:] {
		n.URL = n.server.url(part)
	}
	return nodes
}

// join makes the node, which is empty, a member of the cluster of another node.
func (n RabbitMQNode) join(first RabbitMQNode) {
	n.t.Helper()
	n.Control("stop_app")
	n.Control("reset")
	n.Control("join_cluster", rabbitNode(first.server.port))
	n.Control("start_app")
}
