package rabbitmq

import (
	"encoding/binary"
	"errors"
)

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
