// Command holdfast runs, measures and looks at message queues of every transport that
// Holdfast has: a demo on a durable queue in a file, a benchmark of real
// endpoints, and small tools to send and to count messages.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
