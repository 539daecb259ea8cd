// Command holdfast administers endpoints and queues on every transport of Holdfast, handles error
// queues, sends and counts messages, and has a demo, a benchmark and a torture test.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}))
}
