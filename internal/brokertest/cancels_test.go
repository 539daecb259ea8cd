package brokertest

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
)

func TestCancelsAreLeftOutAndAllElsePasses(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	addr := withoutCancels(t, server.Addr().String())
	send := func(code uint32, rest string) net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		b := binary.BigEndian.AppendUint32(nil, uint32(8+len(rest)))
		if _, err := c.Write(append(binary.BigEndian.AppendUint32(b, code), rest...)); err != nil {
			t.Fatal(err)
		}
		return c
	}

	if _, err := send(cancelRequest, "process, key").Read(make([]byte, 1)); err == nil {
		t.Error("a request to cancel was answered")
	}

	const protocol3 = 3 << 16
	client := send(protocol3, "user")
	c, err := server.Accept() // the first to come
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 12)
	if _, err := io.ReadFull(c, got); err != nil || binary.BigEndian.Uint32(got[4:]) != protocol3 || string(got[8:]) != "user" {
		t.Errorf("the server got %q, %v", got, err)
	}
	if _, err := c.Write([]byte("R")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, got[:1]); err != nil || got[0] != 'R' {
		t.Errorf("the client got %q, %v", got[:1], err)
	}
	_ = c.Close()
	if _, err := client.Read(got); err == nil {
		t.Error("the client's connection outlives the server's")
	}
}
