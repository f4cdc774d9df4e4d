;; y += x W^T: x (m, k) and W (n, k) row by row, y (m, n), all float32; k and n are multiples of 4.
;; Four rows of W at a time: each holds four partial sums, which shuffles add up to four numbers.
;; `wat2wasm network.wat` makes the bytes that network.js starts, in base64.
(module
  (memory (export "memory") 1)
  (func (export "product") (param $x i32) (param $w i32) (param $y i32) (param $m i32) (param $k i32) (param $n i32)
    (local $j i32) (local $row i32) (local $p i32) (local $end i32) (local $v v128)
    (local $a v128) (local $b v128) (local $c v128) (local $d v128)
    (local.set $k (i32.shl (local.get $k) (i32.const 2)))
    (block $done (loop $images
      (br_if $done (i32.eqz (local.get $m)))
      (local.set $row (local.get $w))
      (local.set $j (local.get $n))
      (loop $outputs
        (local.set $a (v128.const i32x4 0 0 0 0)) (local.set $b (local.get $a))
        (local.set $c (local.get $a)) (local.set $d (local.get $a))
        (local.set $p (local.get $x))
        (local.set $end (i32.add (local.get $x) (local.get $k)))
        (loop $inputs
          (local.set $v (v128.load (local.get $p)))
          (local.set $a (f32x4.add (local.get $a) (f32x4.mul (local.get $v) (v128.load (local.get $row)))))
          (local.set $b (f32x4.add (local.get $b) (f32x4.mul (local.get $v)
            (v128.load (i32.add (local.get $row) (local.get $k))))))
          (local.set $c (f32x4.add (local.get $c) (f32x4.mul (local.get $v)
            (v128.load (i32.add (local.get $row) (i32.shl (local.get $k) (i32.const 1)))))))
          (local.set $d (f32x4.add (local.get $d) (f32x4.mul (local.get $v)
            (v128.load (i32.add (local.get $row) (i32.mul (local.get $k) (i32.const 3)))))))
          (local.set $row (i32.add (local.get $row) (i32.const 16)))
          (br_if $inputs (i32.lt_u (local.tee $p (i32.add (local.get $p) (i32.const 16))) (local.get $end))))
        (local.set $row (i32.add (local.get $row) (i32.mul (local.get $k) (i32.const 3))))
        (local.set $a (f32x4.add
          (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $a) (local.get $b))
          (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $a) (local.get $b))))
        (local.set $c (f32x4.add
          (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $c) (local.get $d))
          (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $c) (local.get $d))))
        (v128.store (local.get $y) (f32x4.add (v128.load (local.get $y)) (f32x4.add
          (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $a) (local.get $c))
          (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31 (local.get $a) (local.get $c)))))
        (local.set $y (i32.add (local.get $y) (i32.const 16)))
        (br_if $outputs (local.tee $j (i32.sub (local.get $j) (i32.const 4)))))
      (local.set $x (local.get $end))
      (local.set $m (i32.sub (local.get $m) (i32.const 1)))
      (br $images)))))
