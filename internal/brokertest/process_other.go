//go:build !unix

package brokertest

import "os/exec"

// Brokers of a test binary's own need Unix: elsewhere their programs are not found.

func ownGroup(*exec.Cmd) {}

func groupLives(int) bool { return false }

func as(*exec.Cmd, uint32, uint32) {}
