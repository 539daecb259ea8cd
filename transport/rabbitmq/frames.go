package rabbitmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
)

const (
	// readAhead is how much is read with one system call, if that much is there: the AMQP client
	// asks for 4 KiB.
	readAhead = 64 << 10
	// defaultFrame is the largest frame that the client library accepts unless the broker sets a
	// smaller limit.
	defaultFrame = 128 << 10
	// minFrame is the smallest limit that the broker can set.
	minFrame = 4 << 10
	// maxFrame bounds what is buffered of a content header.
	maxFrame = 16 << 20
)

// Frames of AMQP 0-9-1: type, channel, size of the payload, payload, end mark (section 4.2.3 of the
// specification).
const (
	methodFrame = 1
	headerFrame = 2
	bodyFrame   = 3
	heartbeat   = 8

	frameStart = 7
	frameEnd   = 0xCE
)

// frameReader reads the frames of a connection before the client library. The library closes the
// connection over a message whose headers it cannot decode, and the broker then delivers that
// message first. So frameReader replaces the header table of such a message by one with the table's
// bytes, see [header.UndecodableHeaders], and the top-level headers that are readable. Everything
// else passes unchanged, and is not copied an additional time.
//
// A frameReader is used by one goroutine at a time.
type frameReader struct {
	src   io.Reader
	buf   []byte // buf[:end] has been read; buf[start:] has not been passed on
	start int
	end   int
	// pass is how many bytes from start on may be passed on: whole frames, the last of which may be
	// incomplete.
	pass  int
	limit int  // of a frame
	plain bool // the bytes are no AMQP frames: everything passes

	last     sync.Mutex // guards the fields below, which are also read when the connection has ended
	consumer []byte     // of the last delivery
	tag      uint64
}

func newFrameReader(src io.Reader) *frameReader {
	return &frameReader{src: src, buf: make([]byte, readAhead), limit: defaultFrame}
}

// Read implements [io.Reader].
func (f *frameReader) Read(p []byte) (int, error) {
	for {
		f.check()
		if n := min(f.pass, f.end-f.start); n > 0 {
			n = copy(p, f.buf[f.start:f.start+n])
			f.start += n
			f.pass -= n
			return n, nil
		}
		if err := f.fill(); err != nil {
			return 0, err
		}
	}
}

// check passes the frames that have been read. A method or a content header passes when it is
// complete.
func (f *frameReader) check() {
	for !f.plain {
		at := f.start + f.pass
		if at+frameStart > f.end {
			return
		}
		kind, size := f.buf[at], int64(binary.BigEndian.Uint32(f.buf[at+3:]))
		whole := size + frameStart + 1
		switch {
		case size > maxFrame, kind != methodFrame && kind != headerFrame && kind != bodyFrame && kind != heartbeat:
			f.plain = true // the client library ends the connection
		case kind == bodyFrame || kind == heartbeat:
			f.pass += int(whole)
		case int64(at)+whole > int64(f.end):
			return
		case kind == methodFrame:
			f.note(f.buf[at+frameStart : at+int(whole)-1])
			f.pass += int(whole)
		default:
			f.pass += f.header(at, at+int(whole))
		}
	}
	f.pass = f.end - f.start
}

// fill reads more. It makes room for a whole frame if the frame has to be complete before it
// passes.
func (f *frameReader) fill() error {
	f.end = copy(f.buf, f.buf[f.start:f.end])
	f.start = 0
	if f.end == len(f.buf) {
		f.buf = append(f.buf, make([]byte, len(f.buf))...)
	} else if f.end == 0 && len(f.buf) > 4*readAhead {
		f.buf = make([]byte, readAhead)
	}
	n, err := f.src.Read(f.buf[f.end:])
	f.end += n
	if n > 0 {
		return nil // the next Read returns the error again
	}
	return err
}

// note reads the limit of frames from connection.tune, and the last delivery from basic.deliver.
func (f *frameReader) note(method []byte) {
	if len(method) < 10 {
		return
	}
	switch binary.BigEndian.Uint32(method) {
	case 10<<16 | 30:
		if limit := int(binary.BigEndian.Uint32(method[6:])); limit > 0 {
			f.limit = max(minFrame, min(defaultFrame, limit))
		}
	case 60<<16 | 60:
		if size := shortSize(method[4:]); size > 0 && len(method) >= 4+size+8 {
			f.last.Lock()
			f.consumer = append(f.consumer[:0], method[5:4+size]...)
			f.tag = binary.BigEndian.Uint64(method[4+size:])
			f.last.Unlock()
		}
	}
}

// header checks the content header in buf[at:end], replaces one that the client library cannot
// read, and returns the size of the frame then.
func (f *frameReader) header(at, end int) int {
	payload := f.buf[at+frameStart : end-1]
	table, err := headerTable(payload)
	if err == nil && len(payload) <= f.limit-frameStart-1 || len(payload) < propertiesStart {
		return end - at
	}
	frame := f.replacement(f.buf[at:end], table)
	f.buf = slices.Replace(f.buf[:f.end], at, end, frame...)
	f.end = len(f.buf)
	f.buf = f.buf[:cap(f.buf)]
	return len(frame)
}

// extent is a range of bytes.
type extent struct{ from, to int }

// propertiesStart is where the properties begin in a content header: behind class, weight, body
// size and flags.
const propertiesStart = 2 + 2 + 8 + 2

// headersFlag is the flag of the header table.
const headersFlag = 1 << 13

// headerTable checks the properties of a content header and returns its header table, with the
// length in front. Where another property is malformed, it returns none.
func headerTable(payload []byte) (table extent, err error) {
	if len(payload) < propertiesStart {
		return extent{}, errMalforms
	}
	flags := binary.BigEndian.Uint16(payload[propertiesStart-2:])
	at := propertiesStart
	for flag := uint16(1 << 15); flag > 1<<1; flag >>= 1 {
		if flags&flag == 0 {
			continue
		}
		rest := payload[at:]
		size := 0
		switch flag {
		case headersFlag:
			if size = longSize(rest); size > 0 {
				table = extent{at, at + size}
				err = checkTable(rest[4:size])
			}
		case 1 << 12, 1 << 11: // delivery mode, priority
			size = 1
		case 1 << 6: // timestamp
			size = 8
		default:
			size = shortSize(rest)
		}
		if size == 0 || size > len(rest) {
			return extent{}, errMalforms
		}
		at += size
	}
	return table, err
}

// replacement returns the frame of a content header with another header table. Where the table has
// not been found, the new one replaces all properties.
func (f *frameReader) replacement(frame []byte, table extent) []byte {
	payload := frame[frameStart : len(frame)-1]
	flags := uint16(headersFlag)
	var before, after, fields []byte
	saved := binary.BigEndian.AppendUint32(nil, uint32(len(payload)-propertiesStart+2))
	if table.to == 0 {
		saved = append(saved, payload[propertiesStart-2:]...)
	} else {
		flags = binary.BigEndian.Uint16(payload[propertiesStart-2:])
		before, after = payload[propertiesStart:table.from], payload[table.to:]
		saved = payload[table.from:table.to]
		fields = f.readable(saved)
	}
	const name = header.UndecodableHeaders
	room := f.limit - frameStart - 1 - propertiesStart - len(before) - len(after) - 4 - len(fields) - 1 - len(name) - 5
	saved = saved[:max(0, min(len(saved), room, f.limit/8*5))]

	out := make([]byte, 0, len(frame)+len(fields)+64)
	out = append(out, frame[:frameStart+propertiesStart-2]...)
	out = binary.BigEndian.AppendUint16(out, flags)
	out = append(out, before...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(fields)+1+len(name)+5+len(saved)))
	out = append(out, fields...)
	out = append(append(out, byte(len(name))), name...)
	out = binary.BigEndian.AppendUint32(append(out, 'x'), uint32(len(saved)))
	out = append(out, saved...)
	out = append(append(out, after...), frameEnd)
	binary.BigEndian.PutUint32(out[3:], uint32(len(out)-frameStart-1))
	return out
}

// readable returns the entries of a header table that the client library can read by themselves, of
// a sixteenth of a frame at most. Those of the broker come first, as they count the deliveries.
func (f *frameReader) readable(table []byte) (fields []byte) {
	taken := 0
	for _, brokers := range []bool{true, false} {
		for entries := table[4:]; len(entries) > 0; {
			name := shortSize(entries)
			if name == 0 {
				break
			}
			size, err := checkField(entries[name:], 0)
			if size == 0 {
				break
			}
			entry := entries[:name+size]
			entries = entries[name+size:]
			text := string(entry[1:name])
			if err != nil || text == header.UndecodableHeaders || isBrokers(text) != brokers ||
				len(fields)+len(entry) > f.limit/16 || taken == maxElements/2 {
				continue
			}
			fields = append(fields, entry...)
			taken++
		}
	}
	return fields
}

// undecodable returns why the client library could not read a message's headers, from the bytes
// that replaced them.
func undecodable(saved []byte) error {
	const name = header.UndecodableHeaders
	if len(saved) < 4 {
		return fmt.Errorf("rabbitmq: %w", errMalforms)
	}
	size := int64(binary.BigEndian.Uint32(saved)) + 4
	err := checkTable(saved[4:])
	switch {
	case size > int64(len(saved)):
		if err == nil || errors.Is(err, errMalforms) {
			err = errors.New("the headers are too large to be decoded")
		}
		return fmt.Errorf("rabbitmq: %w: header %s holds the first %d of their %d bytes", err, name, len(saved), size)
	case err == nil:
		err = errors.New("the headers are larger than a frame of the connection")
	}
	return fmt.Errorf("rabbitmq: %w: header %s holds them as they were received", err, name)
}

// lossReason returns why a connection was lost, when the client library reads no more. Where that
// could not read a frame, it names the last delivery: the same message may be redelivered, and end
// the connection again.
func (f *frameReader) lossReason(e *amqp.Error) error {
	f.last.Lock()
	defer f.last.Unlock()
	err := lossOf(e, "connection")
	if e == nil || e.Server || len(f.consumer) == 0 || !slices.Contains([]string{
		amqp.ErrSyntax.Error(), amqp.ErrFrame.Error(), amqp.ErrFrameTooLarge.Error(),
	}, e.Reason) {
		return err
	}
	_, queue, _ := strings.Cut(string(f.consumer), ":")
	return fmt.Errorf("%w: the client library cannot read a frame that the broker sent with or after delivery tag %d of queue %q: "+
		"take that message out of the queue with another client if this repeats", err, f.tag, queue)
}

// Limits of the client library. It closes the connection over a table that exceeds one of them.
const (
	maxNesting  = 32   // tables and lists within the header table
	maxElements = 8192 // of one table or list
)

var (
	errNesting  = errors.New("a header nests tables or lists more than 32 deep")
	errElements = errors.New("the headers hold a table or list of more than 8192 elements")
	errMalforms = errors.New("the headers are not a table of AMQP 0-9-1")
)

// checkTable fails where the client library cannot read the entries of a header table. It allocates
// nothing. Field types are those of RabbitMQ: https://www.rabbitmq.com/amqp-0-9-1-errata.
func checkTable(entries []byte) error { return checkElements(entries, true, 0) }

// checkElements checks the entries of a table, which have names, or the elements of a list.
func checkElements(b []byte, named bool, depth int) error {
	if depth > maxNesting {
		return errNesting
	}
	for n := 0; len(b) > 0; n++ {
		if n == maxElements {
			return errElements
		}
		if named {
			size := shortSize(b)
			if size == 0 {
				return errMalforms
			}
			b = b[size:]
		}
		size, err := checkField(b, depth)
		if err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// checkField checks the first value in b and returns its size with the type. The size is 0 unless
// only a nested value is malformed.
func checkField(b []byte, depth int) (size int, err error) {
	if size = fieldSize(b); size == 0 {
		return 0, errMalforms
	}
	if b[0] == 'F' || b[0] == 'A' {
		err = checkElements(b[5:size], b[0] == 'F', depth+1)
	}
	return size, err
}

// fieldSize returns how many bytes the first value in b has with its type; 0 where b has none.
func fieldSize(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	content := 0
	switch b[0] {
	case 'V':
	case 't', 'b', 'B':
		content = 1
	case 's', 'u':
		content = 2
	case 'I', 'i', 'f':
		content = 4
	case 'D':
		content = 5
	case 'l', 'd', 'T':
		content = 8
	case 'S', 'x', 'F', 'A':
		if content = longSize(b[1:]); content == 0 {
			return 0
		}
	default:
		return 0
	}
	if 1+content > len(b) {
		return 0
	}
	return 1 + content
}

// longSize returns how many bytes the long string, table or list at the beginning of b has with its
// length, or 0.
func longSize(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	size := int64(binary.BigEndian.Uint32(b)) + 4
	if size > int64(len(b)) {
		return 0
	}
	return int(size)
}

// shortSize is longSize for a short string.
func shortSize(b []byte) int {
	if len(b) == 0 || int(b[0]) >= len(b) {
		return 0
	}
	return int(b[0]) + 1
}
