package sqlite

import (
	"database/sql"
	"database/sql/driver"
	"reflect"
	"sync"
	"time"

	codes "modernc.org/sqlite/lib"
)

// A function of OnCommit that hangs may hang in a statement that ignores the context of the
// function. The statement keeps the writer's connection, and with it the lock of the file, so it
// has to be interrupted.

// interruptEvery is the time between two interrupts: SQLite forgets an interrupt that comes before
// its statement has begun.
const interruptEvery = 10 * time.Millisecond

// interrupter interrupts the statements on the writer's connection. It is safe for concurrent use.
type interrupter struct {
	mu sync.Mutex // guards the rest, and is held while a statement is interrupted
	db uintptr    // SQLite's handle of the connection; 0 for none
}

// attach makes conn the connection whose statements are interrupted.
func (i *interrupter) attach(conn driver.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.db = handleOf(conn)
}

// detach is called before the connection is closed.
func (i *interrupter) detach() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.db = 0
}

// interrupt ends the statements that are executed at the moment with an error.
func (i *interrupter) interrupt() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.db != 0 {
		codes.Xsqlite3_interrupt(nil, i.db)
	}
}

// until interrupts statements until over is closed.
func (i *interrupter) until(over <-chan struct{}) {
	ticker := time.NewTicker(interruptEvery)
	defer ticker.Stop()
	for {
		i.interrupt()
		select {
		case <-over:
			return
		case <-ticker.C:
		}
	}
}

// handleOf returns SQLite's handle of a connection of the driver, or 0 if the connection has no
// such field. The driver has no function that interrupts a statement.
func handleOf(conn driver.Conn) uintptr {
	v := reflect.Indirect(reflect.ValueOf(conn))
	if v.Kind() != reflect.Struct {
		return 0
	}
	if db := v.FieldByName("db"); db.Kind() == reflect.Uintptr {
		return uintptr(db.Uint())
	}
	return 0
}

// rollback rolls tx back while it interrupts the statements of a function that hangs: a rollback
// waits for them. An interrupt may also end the rollback, so the caller closes the connection.
func (i *interrupter) rollback(tx *sql.Tx) {
	over := make(chan struct{})
	var interrupting sync.WaitGroup
	interrupting.Go(func() { i.until(over) })
	_ = tx.Rollback()
	close(over)
	interrupting.Wait()
}
