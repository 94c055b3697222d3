// A library in Go for a program in C, or a program in Go with functions in C.
package main

/*
#include "talk.h"
*/
import "C"

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
)

type descriptor int

func (fd descriptor) Read(part []byte) (int, error)  { return syscall.Read(int(fd), part) }
func (fd descriptor) Write(part []byte) (int, error) { return syscall.Write(int(fd), part) }

func exchange(end io.ReadWriter, rounds int) bool {
	got := make([]byte, 777)
	for round := 0; round < rounds; round++ {
		due := bytes.Repeat([]byte{byte('A' + round%26)}, len(got))
		if _, err := end.Write(due); err != nil {
			return false
		}
		if _, err := io.ReadFull(end, got); err != nil || !bytes.Equal(due, got) {
			return false
		}
	}
	return true
}

func number(isWell bool) C.int {
	if isWell {
		return 1
	}
	return 0
}

// Relay talks on a connection of the program in C.
//
//export Relay
func Relay(fd, rounds C.int) C.int {
	return number(exchange(descriptor(fd), int(rounds)))
}

// Dial talks on a connection of its own.
//
//export Dial
func Dial(port, rounds C.int) C.int {
	end, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return 0
	}
	defer end.Close()
	return number(exchange(end, int(rounds)))
}

func main() {
	port, _ := strconv.Atoi(os.Args[1])
	fd := C.meet(C.int(port))
	isWell := fd >= 0 && C.talk(fd, 200) == 1 && Relay(fd, 100) == 1 && C.talk(fd, 100) == 1
	if isWell && Dial(C.int(port), 100) == 1 {
		fmt.Println("fine")
	}
}
