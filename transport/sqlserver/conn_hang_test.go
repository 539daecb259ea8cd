package sqlserver

import (
	"context"
	"database/sql/driver"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// connects is a connector of the user's.
type connects func() (driver.Conn, error)

func (f connects) Connect(context.Context) (driver.Conn, error) { return f() }
func (connects) Driver() driver.Driver                          { return nil }

// lateConn is a connection that reports its end.
type lateConn struct {
	driver.Conn
	closed chan struct{}
}

func (c lateConn) Close() error {
	close(c.closed)
	return nil
}

// A connector that hangs, panics or ends its goroutine ends no caller. A connection that comes late
// is closed.
func TestAConnectorEndsNoCaller(t *testing.T) {
	for name, f := range map[string]connects{
		"panic":  func() (driver.Conn, error) { panic("no") },
		"goexit": func() (driver.Conn, error) { runtime.Goexit(); return nil, nil },
	} {
		if _, err := (connector{f}).Connect(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		release, closed := make(chan struct{}), make(chan struct{})
		f := connects(func() (driver.Conn, error) {
			<-release
			return lateConn{closed: closed}, nil
		})
		began := time.Now()
		_, err := connector{f}.Connect(t.Context())
		if took := time.Since(began); !errors.Is(err, errNoConn) || took != connectTimeout {
			t.Errorf("after %v: %v", took, err)
		}
		close(release)
		<-closed
	})
}
