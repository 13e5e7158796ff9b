/* SPDX-License-Identifier: BSD-3-Clause */
/* The OpenGL types in cudaGL.h, so that the driver's table can be generated without the OpenGL headers. */
#ifndef GPUSHARE_COMPAT_GL_H
#define GPUSHARE_COMPAT_GL_H

typedef unsigned int GLenum;
typedef unsigned int GLuint;

#endif
