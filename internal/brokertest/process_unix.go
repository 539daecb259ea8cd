//go:build unix

package brokertest

import (
	"errors"
	"os/exec"
	"syscall"
)

// ownGroup puts a process into a group of its own, which a signal ends as a whole.
func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
}

// groupLives reports whether a process group has processes.
func groupLives(group int) bool { return !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }

// as makes a process run as another user.
func as(cmd *exec.Cmd, uid, gid uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
}
