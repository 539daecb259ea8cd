package bench

import (
	"io"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"
)

// meter measures the resources of this process between start and stop.
type meter struct {
	begun  time.Time
	before runtime.MemStats
	usage  time.Duration

	elapsed       time.Duration
	cpu           time.Duration
	allocs, bytes uint64
}

// start begins to measure; profile may be nil.
func (m *meter) start(profile io.Writer) error {
	if profile != nil {
		if err := pprof.StartCPUProfile(profile); err != nil {
			return err
		}
	}
	runtime.ReadMemStats(&m.before)
	m.usage = cpuTime()
	m.begun = time.Now()
	return nil
}

func (m *meter) stop() {
	m.elapsed = time.Since(m.begun)
	m.cpu = cpuTime() - m.usage
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	m.allocs, m.bytes = after.Mallocs-m.before.Mallocs, after.TotalAlloc-m.before.TotalAlloc
	pprof.StopCPUProfile() // without a profile it does nothing
}

func rusage() syscall.Rusage {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail with these arguments
	return u
}

func cpuTime() time.Duration {
	u := rusage()
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peakRSS returns the most memory that this process ever had, in bytes.
func peakRSS() int64 {
	max := int64(rusage().Maxrss)
	if runtime.GOOS == "darwin" { // bytes there, kilobytes elsewhere
		return max
	}
	return max << 10
}
